"""The policy-gradient objective as three separate things: a per-token loss, a per-token weight, and one global denominator.

    loss = sum_t weight_t * loss_t / denominator

An objective's name stands for a surrogate (`surrogates.py`) and an average. As weights and denominator are fixed over the whole
batch before it is cut into micro-batches or spread over ranks, cutting changes nothing.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from composer_replication.policy_gradient.surrogates import MAX_LOG_RATIO, SurrogateKind

Objective: TypeAlias = Literal["grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo", "dppo"]

_OTHER_SURROGATES: dict[str, SurrogateKind] = {"gspo": "gspo", "cispo": "cispo", "dppo": "dppo"}


def surrogate_of(objective: Objective) -> SurrogateKind:
    """Return the surrogate that an objective uses."""
    return _OTHER_SURROGATES.get(objective, "ppo")


def kl_k3(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """Return Schulman's k3 estimate of KL(pi || other) on tokens drawn from pi: exp(d) - 1 - d >= 0 with d = other - pi.

    Element-wise, in nats (http://joschu.net/blog/kl-approx.html). It is the KL term of GRPO (arXiv:2402.03300, equation 4),
    without importance correction. Above d = 20 the exponential goes on as its tangent, so that it stays finite and still pulls.
    Gradient flows through `logprobs` only.
    """
    difference = other_logprobs.detach() - logprobs
    beyond = (difference - MAX_LOG_RATIO).clamp(min=0.0)
    return torch.expm1(difference.clamp(max=MAX_LOG_RATIO)) + math.exp(MAX_LOG_RATIO) * beyond - difference


def kl_k1_penalty(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Sum over the tokens in `mask` [B, T] (non-zero) of log pi - log ref [B, T]: the k1 estimate of a sequence's KL(pi || ref),
    without gradient, [B].

    Unbiased and possibly negative (http://joschu.net/blog/kl-approx.html). Times a coefficient it is subtracted from the REWARD,
    before advantages are taken, where `kl_k3` belongs in the loss.
    """
    return torch.where(mask != 0, logprobs - ref_logprobs, 0.0).detach().sum(-1)


def sequence_weights(mask: Tensor, objective: Objective, *, max_tokens: int | None = None) -> tuple[Tensor, Tensor]:
    """Return weights [B, T] and 0-dim denominator of an objective, both float32 and both made from the same `mask` [B, T]
    (non-zero = in the loss).

    - `grpo`, `gspo`: mean over a sequence's tokens, then over sequences (arXiv:2402.03300, equation 3; arXiv:2507.18071,
      equation 13)
    - `dr_grpo`: sum over tokens / (sequences * max_tokens) (arXiv:2503.20783, section 3.2); `max_tokens` is the
      sampled-token budget
    - `dapo`, `bnpo`, `cispo`, `dppo`: mean over all tokens of the batch (arXiv:2503.14476, equation 8). TRL's `bnpo` takes the
      mean over each micro-batch, which depends on how the batch was cut; over one uncut batch it is this one.

    A sequence whose mask is all zero counts in no denominator. The denominator of an all-zero mask is 0 (the channel is
    off). Raises ValueError on an unknown objective, or for `dr_grpo` when `max_tokens` is missing or a sequence has more
    tokens than that.
    """
    weights = (mask != 0).float()
    lengths = weights.sum(-1, keepdim=True)
    sequences = (lengths > 0).sum().float()
    if objective in ("grpo", "gspo"):
        return weights / lengths.clamp(min=1.0), sequences
    if objective in ("dapo", "bnpo", "cispo", "dppo"):
        return weights, lengths.sum()
    if objective == "dr_grpo":
        if max_tokens is None or max_tokens < 1:
            raise ValueError("objective 'dr_grpo' needs max_tokens, the sampled-token budget of a sequence")
        if lengths.numel() and float(lengths.max()) > max_tokens:
            raise ValueError(f"a sequence has {int(lengths.max())} tokens in the loss, more than max_tokens={max_tokens}")
        return weights, sequences * max_tokens
    raise ValueError(f"unknown objective {objective!r}: expected one of {', '.join(get_args(Objective))}")
