"""The policy-gradient objective as three separate things: a per-token loss, a per-token weight, and one global denominator.

    loss = sum_t weight_t * loss_t / denominator

What distinguishes GRPO, Dr. GRPO and DAPO is only the weights and the denominator. As both are fixed over the whole batch before
it is cut into micro-batches or spread over ranks, cutting changes nothing.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

__all__ = ["Objective", "Surrogate", "clipped_surrogate", "kl_k3", "sequence_weights"]

Objective: TypeAlias = Literal["grpo", "dr_grpo", "dapo"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20: e^20 is past any clip range and still finite in float32."""


class Surrogate(NamedTuple):
    """Per-token result of `clipped_surrogate`, all of the inputs' shape."""

    loss: Tensor
    """To be minimised; with gradient."""
    ratio: Tensor
    """pi(token) / pi_old(token), detached; 1 on masked tokens."""
    clipped: Tensor
    """Bool: the clip is active, so the token has no gradient."""


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    mask: Tensor | None = None,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.28,
) -> Surrogate:
    """PPO's per-token surrogate -min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) with r = exp(logprobs - old_logprobs).

    `epsilon_high > epsilon_low` is DAPO's clip-higher (arXiv:2503.14476, equation 10); equal values give PPO and GRPO
    (arXiv:2402.03300, equation 3). All tensors share one shape (or broadcast). Tokens outside `mask` (0 or False) have ratio
    1 and loss 0, whatever their log-probs are. Gradient flows through `logprobs` only.
    """
    log_ratio = logprobs - old_logprobs.detach()
    keep = torch.ones_like(log_ratio, dtype=torch.bool) if mask is None else mask.bool().expand_as(log_ratio)
    log_ratio = torch.where(keep, log_ratio, 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    advantages = torch.where(keep, advantages, 0.0)
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1.0 - epsilon_low, 1.0 + epsilon_high)
    loss = -torch.minimum(ratio * advantages, clipped_ratio * advantages)
    too_low = (ratio < 1.0 - epsilon_low) & (advantages < 0)
    too_high = (ratio > 1.0 + epsilon_high) & (advantages > 0)
    return Surrogate(loss=loss, ratio=ratio.detach(), clipped=too_low | too_high)


def kl_k3(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(pi || other) on tokens drawn from pi: exp(d) - 1 - d >= 0 with d = other - pi, clamped to
    +-20.

    Element-wise, in nats (http://joschu.net/blog/kl-approx.html). It is the KL term of GRPO (arXiv:2402.03300, equation 4),
    without importance correction. Gradient flows through `logprobs` only.
    """
    difference = (other_logprobs.detach() - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(difference) - difference


def sequence_weights(mask: Tensor, objective: Objective, *, max_tokens: int | None = None) -> tuple[Tensor, Tensor]:
    """Weights [B, T] and 0-dim denominator of an objective, both float32 and both made from the same `mask` [B, T] (non-zero
    = in the loss).

    - `grpo`: mean over a sequence's tokens, then over sequences (arXiv:2402.03300, equation 3)
    - `dr_grpo`: sum over tokens / (sequences * max_tokens) (arXiv:2503.20783, section 3.2); `max_tokens` is the
      sampled-token budget
    - `dapo`: mean over all tokens of the batch (arXiv:2503.14476, equation 8)

    A sequence whose mask is all zero counts in no denominator. The denominator of an all-zero mask is 0 (the channel is
    off). Raises ValueError on an unknown objective, or for `dr_grpo` when `max_tokens` is missing or a sequence has more
    tokens than that.
    """
    weights = (mask != 0).float()
    lengths = weights.sum(-1, keepdim=True)
    sequences = (lengths > 0).sum().float()
    if objective == "grpo":
        return weights / lengths.clamp(min=1.0), sequences
    if objective == "dapo":
        return weights, lengths.sum()
    if objective == "dr_grpo":
        if max_tokens is None or max_tokens < 1:
            raise ValueError("objective 'dr_grpo' needs max_tokens, the sampled-token budget of a sequence")
        if lengths.numel() and float(lengths.max()) > max_tokens:
            raise ValueError(f"a sequence has {int(lengths.max())} tokens in the loss, more than max_tokens={max_tokens}")
        return weights, sequences * max_tokens
    raise ValueError(f"unknown objective {objective!r}: expected 'grpo', 'dr_grpo' or 'dapo'")
