"""The per-token policy-gradient losses, all functions of r = exp(log-prob now - log-prob when sampled) and the advantage A.

- `ppo`: -min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) (PPO, GRPO arXiv:2402.03300 equation 3; `epsilon_high` above
  `epsilon_low` is DAPO's clip-higher, arXiv:2503.14476 equation 10)
- `gspo`: the same with r replaced by s, the geometric mean of r over the token's sequence, in the per-token form whose gradient
  still goes through the token's own log-prob (GSPO-token, arXiv:2507.18071 equation 14)
- `cispo`: -sg[clip(r, 1 - epsilon_low, 1 + epsilon_high)] A log-prob: clipping limits a token's weight and never removes it
  (arXiv:2506.13585 equation 5)
- `sapo`: -(4 / t) sigmoid(t (r - 1)) A with t = 1 where A > 0 and 1.05 elsewhere: a gate that closes gradually in place of the
  clip, and earlier where A < 0 (arXiv:2511.20347)
- `dppo`: -keep r A + tau (log r)^2, where keep drops a token whose probability has already moved further than epsilon in the
  direction of its advantage (PRIME-RL's default loss, https://github.com/PrimeIntellect-ai/prime-rl)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

SurrogateKind: TypeAlias = Literal["ppo", "gspo", "cispo", "sapo", "dppo"]

THRESHOLDS: Mapping[SurrogateKind, tuple[float, float]] = {
    "ppo": (0.2, 0.28),  # DAPO, arXiv:2503.14476
    "gspo": (3e-4, 4e-4),  # arXiv:2507.18071
    "cispo": (1.0, 4.0),  # weights in [0, 5]: no lower bound (arXiv:2506.13585), and the upper one of ScaleRL (arXiv:2510.13786)
    "dppo": (0.2, 0.2),  # differences of probabilities; PRIME-RL's defaults
}
"""(epsilon_low, epsilon_high) where none are given: they mean something else in every surrogate. `sapo` has none."""

SAPO_TEMPERATURES = (1.0, 1.05)
"""Of `sapo`'s gate, where the advantage is above 0 and elsewhere (arXiv:2511.20347)."""

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20: e^20 is past any clip range and still finite in float32."""


class Surrogate(NamedTuple):
    """Per-token result, all of the inputs' shape."""

    loss: Tensor
    """To be minimised; with gradient."""
    ratio: Tensor
    """pi(token) / pi_old(token), detached; 1 on masked tokens. In `gspo` the sequence's."""
    clipped: Tensor
    """Bool: the clip is active. Except in `cispo`, where it limits the weight, such a token's policy gradient is 0."""


def surrogate(
    kind: SurrogateKind,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    epsilon_low: float | None = None,
    epsilon_high: float | None = None,
    sequence: Tensor | None = None,
    tau: float = 1e-3,
    ratio_cap: float | None = None,
) -> Surrogate:
    """Compute one of the losses of the module docstring on tokens [n]; gradient flows through `logprobs` only.

    An epsilon of None is that of `THRESHOLDS`. `sequence` [n] (int64) says which sequence a token belongs to; `gspo` needs it.
    `tau` is read by `dppo`, `ratio_cap` by `ppo` and `gspo` (see `clipped_surrogate`). Raises ValueError on an unknown kind, a
    negative epsilon, and for `gspo` without `sequence`.
    """
    if kind == "sapo":
        return _sapo(logprobs, old_logprobs, advantages)
    epsilon_low, epsilon_high = thresholds(kind, epsilon_low, epsilon_high)
    limits: dict[str, Any] = {"epsilon_low": epsilon_low, "epsilon_high": epsilon_high, "ratio_cap": ratio_cap}
    if kind == "ppo":
        return clipped_surrogate(logprobs, old_logprobs, advantages, **limits)
    if kind == "gspo":
        if sequence is None:
            raise ValueError("surrogate 'gspo' needs `sequence`: its ratio is that of a whole sequence")
        return _gspo(logprobs, old_logprobs, advantages, sequence, limits)
    if kind == "cispo":
        return _cispo(logprobs, old_logprobs, advantages, epsilon_low, epsilon_high)
    return _dppo(logprobs, old_logprobs, advantages, epsilon_low, epsilon_high, tau)


def thresholds(kind: SurrogateKind, epsilon_low: float | None, epsilon_high: float | None) -> tuple[float, float]:
    """Return both epsilons, taking those that are None from `THRESHOLDS`. Raises ValueError on an unknown kind or a negative
    epsilon."""
    if kind not in THRESHOLDS:
        raise ValueError(f"unknown surrogate {kind!r}: expected {', '.join(map(repr, (*THRESHOLDS, 'sapo')))}")
    low, high = THRESHOLDS[kind]
    low, high = low if epsilon_low is None else epsilon_low, high if epsilon_high is None else epsilon_high
    for name, value in (("epsilon_low", low), ("epsilon_high", high)):
        if not value >= 0.0:
            raise ValueError(f"{name} must be at least 0, got {value}")
    return low, high


def clipped_surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    mask: Tensor | None = None,
    epsilon_low: float = THRESHOLDS["ppo"][0],
    epsilon_high: float = THRESHOLDS["ppo"][1],
    ratio_cap: float | None = None,
) -> Surrogate:
    """Return PPO's per-token surrogate -min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A) with r = exp(logprobs -
    old_logprobs).

    `epsilon_high > epsilon_low` is DAPO's clip-higher (arXiv:2503.14476, equation 10); equal values give PPO and GRPO
    (arXiv:2402.03300, equation 3). `ratio_cap` limits r where A < 0, which the clip does not: a token that has become far more
    likely would else pull without bound (the two-sided clip of INTELLECT-2, arXiv:2505.07291). All tensors share one
    shape (or broadcast). Tokens outside `mask` (0 or False) have ratio 1 and loss 0, whatever their log-probs are. Gradient flows
    through `logprobs` only.

    Raises ValueError unless `ratio_cap` is above 1 + epsilon_high.
    """
    if ratio_cap is not None and not ratio_cap > 1.0 + epsilon_high:
        raise ValueError(f"ratio_cap must be above 1 + epsilon_high = {1.0 + epsilon_high}, got {ratio_cap}")
    log_ratio = logprobs - old_logprobs.detach()
    keep = torch.ones_like(log_ratio, dtype=torch.bool) if mask is None else mask.bool().expand_as(log_ratio)
    log_ratio = torch.where(keep, log_ratio, 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    advantages = torch.where(keep, advantages, 0.0)
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1.0 - epsilon_low, 1.0 + epsilon_high)
    capped = ratio if ratio_cap is None else ratio.clamp(max=ratio_cap)
    loss = -torch.minimum(capped * advantages, clipped_ratio * advantages)
    too_low = (ratio < 1.0 - epsilon_low) & (advantages < 0)
    too_high = (ratio > 1.0 + epsilon_high) & (advantages > 0)
    if ratio_cap is not None:
        too_high |= (ratio > ratio_cap) & (advantages < 0)
    return Surrogate(loss=loss, ratio=ratio.detach(), clipped=too_low | too_high)


def sequence_means(values: Tensor, sequence: Tensor) -> Tensor:
    """Return at each token [n] the mean of `values` [n] over the tokens of its sequence; `sequence` [n] are int64 numbers."""
    size = int(sequence.max()) + 1 if sequence.numel() else 0
    totals = values.new_zeros(size).index_add(0, sequence, values)
    counts = values.new_zeros(size).index_add(0, sequence, torch.ones_like(values))
    return (totals / counts.clamp(min=1.0))[sequence]


def _gspo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, limits: Mapping[str, Any]) -> Surrogate:
    mean = sequence_means((logprobs - old_logprobs).detach(), sequence)
    # value: the sequence's ratio; gradient: that of the token's own log-prob
    return clipped_surrogate(logprobs - logprobs.detach() + mean, torch.zeros_like(mean), advantages, **limits)


def _cispo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, epsilon_low: float, epsilon_high: float) -> Surrogate:
    ratio = _log_ratio(logprobs, old_logprobs).detach().exp()
    weight = ratio.clamp(1.0 - epsilon_low, 1.0 + epsilon_high)
    return Surrogate(loss=-weight * advantages * logprobs, ratio=ratio, clipped=weight != ratio)


def _sapo(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Surrogate:
    ratio = _log_ratio(logprobs, old_logprobs).exp()
    risen, fallen = SAPO_TEMPERATURES
    temperature = torch.full_like(ratio, fallen).masked_fill(advantages > 0, risen)
    gated = 4.0 / temperature * torch.sigmoid(temperature * (ratio - 1.0))
    return Surrogate(loss=-gated * advantages, ratio=ratio.detach(), clipped=torch.zeros_like(ratio, dtype=torch.bool))


def _dppo(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, epsilon_low: float, epsilon_high: float, tau: float
) -> Surrogate:
    log_ratio = _log_ratio(logprobs, old_logprobs)
    moved = logprobs.detach().exp() - old_logprobs.detach().exp()
    dropped = torch.where(advantages > 0, moved > epsilon_high, moved < -epsilon_low)
    ratio = log_ratio.exp()
    loss = torch.where(dropped, 0.0, -ratio * advantages) + tau * log_ratio**2
    return Surrogate(loss=loss, ratio=ratio.detach(), clipped=dropped)


def _log_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    return (logprobs - old_logprobs.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
