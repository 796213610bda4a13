"""Log-probs that a causal LM gives to the tokens of a sequence.

Convention used everywhere: a value "at position p" belongs to the token AT p, and is read from the logits at p - 1. Position
0 has no predecessor and therefore no log-prob.
"""

from __future__ import annotations

import torch
from torch import Tensor

from composer_replication.kernels import upcast


def token_logprobs(
    logits: Tensor, token_ids: Tensor, *, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the log-prob of each token and the entropy (nats) of the distribution it was drawn from.

    `logits` [..., V] are those that predict `token_ids` [...]. The softmax is taken in float32 when they are bf16 or fp16.
    Returns log-probs [...] with gradient, and entropies [...], with one only if `entropy_gradient`: it keeps two more buffers of
    the logits' size. Raises ValueError unless temperature > 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    logprobs = torch.log_softmax(upcast(logits) / temperature, dim=-1)
    chosen = logprobs.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    known = logprobs if entropy_gradient else logprobs.detach()
    entropy = -(known.exp() * known.clamp(min=-1e4)).sum(-1)  # 0 log 0 is 0
    return chosen, entropy
