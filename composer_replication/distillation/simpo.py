"""SimPO: reference-free preference optimization (arXiv:2405.14734, equation 6)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from composer_replication.distillation.dpo import that_count, weighed
from composer_replication.distillation.preference import simpo_losses


def simpo_loss(
    chosen_avg_logps: Tensor,
    rejected_avg_logps: Tensor,
    beta: float = 2.0,
    gamma: float = 1.0,
    *,
    weights: Tensor | None = None,
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """Return -log sigmoid(beta (chosen - rejected) - gamma) over AVERAGE log-probs per token [P].

    `mean` divides by the number of pairs, or by the sum of `weights` [P] when given; `none` returns [P] (times the weights).
    No pairs, and pairs of weight 0 alone, give 0. Raises ValueError when the shapes differ (nothing is broadcast).
    """
    if chosen_avg_logps.shape != rejected_avg_logps.shape:
        raise ValueError(f"simpo_loss needs one shape, got {tuple(chosen_avg_logps.shape)} and {tuple(rejected_avg_logps.shape)}")
    chosen, rejected = that_count(weights, chosen_avg_logps, rejected_avg_logps)
    return weighed(simpo_losses(chosen, rejected, beta, gamma), weights, reduction)
