"""Correction of the mismatch between the engine that sampled and the trainer that scores the same tokens.

Both should give a token the same log-prob and never quite do (other kernels, other precision, an older policy). The weight w =
exp(trainer - sampler) corrects the expectation over the sampler's tokens; it is truncated or masked, because a single large
weight would decide the step.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from composer_replication.policy_gradient.surrogates import MAX_LOG_RATIO, sequence_means

ImportanceKind: TypeAlias = Literal["tis", "icepop"]


def importance_weights(
    trainer_logprobs: Tensor,
    sampler_logprobs: Tensor,
    kind: ImportanceKind,
    *,
    low: float = 0.5,
    high: float = 2.0,
    sequence: Tensor | None = None,
) -> Tensor:
    """Return weights [n] without gradient, at least 0, of tokens with these log-probs [n].

    - `tis`, truncated importance sampling: min(w, high) (https://fengyao.notion.site/off-policy-rl)
    - `icepop`: w where low <= w <= high, else 0 (https://ringtech.notion.site/icepop)

    With `sequence` [n] (int64, which sequence a token belongs to), w is that of the whole sequence: the exponential of the sum of
    its tokens' log-ratios. Raises ValueError as `check_importance`.
    """
    check_importance(kind, low, high)
    log_ratio = (trainer_logprobs - sampler_logprobs).detach()
    if sequence is not None and sequence.numel():
        sums = log_ratio.new_zeros(int(sequence.max()) + 1).index_add(0, sequence, log_ratio)
        log_ratio = sums[sequence]
    weights = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if kind == "tis":
        return weights.clamp(max=high)
    return torch.where((weights >= low) & (weights <= high), weights, 0.0)


def off_policy_mask(logprobs: Tensor, sampled_logprobs: Tensor, advantages: Tensor, sequence: Tensor, threshold: float) -> Tensor:
    """Return 1 for tokens [n] to keep and 0 for those of off-policy sequences with a negative advantage, without gradient.

    A sequence is off-policy when the mean over its tokens of sampled_logprobs - logprobs is above `threshold`, in nats: what the
    policy has long left behind need not be pushed away further (DeepSeek-V3.2, arXiv:2512.02556). `sequence` [n]
    (int64) says which sequence a token belongs to.
    """
    moved = sequence_means((sampled_logprobs - logprobs).detach(), sequence)
    return 1.0 - ((moved > threshold) & (advantages < 0)).to(logprobs.dtype)


def check_importance(kind: ImportanceKind, low: float, high: float) -> None:
    """Raise ValueError on an unknown kind, for `icepop` unless 0 <= low < high, and for `tis`, which reads no `low`, unless high
    > 0."""
    if kind not in ("tis", "icepop"):
        raise ValueError(f"unknown importance correction {kind!r}: expected 'tis' or 'icepop'")
    if kind == "tis" and not high > 0.0:
        raise ValueError(f"importance weights of 'tis' need high > 0, got high={high}")
    if kind == "icepop" and not 0.0 <= low < high:
        raise ValueError(f"importance weights of 'icepop' need 0 <= low < high, got low={low}, high={high}")
