"""Log-probs that a causal LM gives to the tokens of a sequence.

Convention used everywhere: a value "at position p" belongs to the token AT p, and is read from the logits at p - 1. Position
0 has no predecessor and therefore no log-prob.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["causal_logits", "sequence_logprobs", "token_logprobs"]


def causal_logits(model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Logits [B, T, V] of a Hugging Face causal LM over right-padded `input_ids` [B, T] (int64)."""
    logits: Tensor = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
    return logits


def token_logprobs(logits: Tensor, token_ids: Tensor, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-prob of each token and the entropy (nats) of the distribution it was drawn from.

    `logits` [..., V] are those that predict `token_ids` [...]. The softmax is taken in float32 when they are bf16 or fp16.
    Returns (log-probs [...] with gradient, entropies [...] without). Raises ValueError unless temperature > 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    chosen = logprobs.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    entropy = torch.special.entr(logprobs.detach().exp()).sum(-1)
    return chosen, entropy


def sequence_logprobs(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor | None, response_mask: Tensor, temperature: float = 1.0
) -> Tensor:
    """Per-token log-probs [B, T] of the tokens in `response_mask` [B, T] (non-zero = wanted), 0 elsewhere; `sum(-1)` scores
    a sequence.

    Differentiable; call it under `torch.no_grad()` for a reference policy. Only the wanted rows go through the softmax.
    Raises ValueError when position 0 is wanted.
    """
    wanted = response_mask != 0
    if wanted[:, :1].any():
        raise ValueError("response_mask selects position 0, which has no predecessor and therefore no log-prob")
    row, position = wanted.nonzero(as_tuple=True)
    logits = causal_logits(model, input_ids, attention_mask)
    chosen, _ = token_logprobs(logits[row, position - 1], input_ids[row, position], temperature=temperature)
    return chosen.new_zeros(input_ids.shape).index_put((row, position), chosen)
