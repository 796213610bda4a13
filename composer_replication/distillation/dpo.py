"""Direct preference optimization (arXiv:2305.18290, equation 7)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from composer_replication.distillation._numerics import check_choice
from composer_replication.distillation.preference import dpo_losses


def dpo_loss(
    chosen_logps: Tensor,
    rejected_logps: Tensor,
    ref_chosen_logps: Tensor,
    ref_rejected_logps: Tensor,
    beta: float = 0.1,
    *,
    weights: Tensor | None = None,
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """Return -log sigmoid(beta [(chosen - ref_chosen) - (rejected - ref_rejected)]) over SUMMED log-probs [P] of policy and
    reference.

    `mean` divides by the number of pairs, or by the sum of `weights` [P] when given; `none` returns [P] (times the weights).
    No pairs, and pairs of weight 0 alone, give 0. The reference has no gradient. Raises ValueError when the shapes differ
    (nothing is broadcast).
    """
    shapes = {tuple(x.shape) for x in (chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps)}
    if len(shapes) != 1:
        raise ValueError(f"dpo_loss needs four tensors of one shape, got {sorted(shapes)}")
    distances = chosen_logps - ref_chosen_logps.detach(), rejected_logps - ref_rejected_logps.detach()
    chosen, rejected = that_count(weights, *distances)
    return weighed(dpo_losses(chosen, rejected, beta), weights, reduction)


def that_count(weights: Tensor | None, *values: Tensor) -> tuple[Tensor, ...]:
    """Return the values [P] of pairs with 0 in place of those whose weight is 0, which then have no influence, whatever they are.
    Raises ValueError when there is not a weight for each."""
    if weights is None:
        return values
    if any(value.shape != weights.shape for value in values):
        raise ValueError(f"weights {tuple(weights.shape)} do not match the pairs {tuple(values[0].shape)}")
    return tuple(torch.where(weights == 0, 0.0, value) for value in values)


def weighed(losses: Tensor, weights: Tensor | None, reduction: Literal["mean", "none"]) -> Tensor:
    """Return losses [P] of pairs times their weights; for `mean` the sum of that over the sum of the weights (or the number of
    pairs). Nothing that weighs gives 0 attached to the graph."""
    check_choice("reduction", reduction, ("mean", "none"))
    if weights is None:
        weights = torch.ones_like(losses)
    if reduction == "none":
        return losses * weights
    total = weights.sum()
    return (losses * weights).sum() / torch.where(total == 0, 1.0, total)
