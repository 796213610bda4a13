"""Direct preference optimization (arXiv:2305.18290, equation 7)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from composer_replication.distillation._numerics import check_choice


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
    margin = (chosen_logps - ref_chosen_logps.detach()) - (rejected_logps - ref_rejected_logps.detach())
    return pair_losses(beta * margin, weights, reduction)


def pair_losses(margin: Tensor, weights: Tensor | None, reduction: Literal["mean", "none"]) -> Tensor:
    """Return -log sigmoid(margin) [P], times the weights; for `mean` their sum over that of the weights (or the number of pairs).
    A pair of weight 0 has no influence, whatever its margin; nothing that weighs gives 0 attached to the graph."""
    check_choice("reduction", reduction, ("mean", "none"))
    if weights is None:
        weights = torch.ones_like(margin)
    if weights.shape != margin.shape:
        raise ValueError(f"weights {tuple(weights.shape)} do not match the pairs {tuple(margin.shape)}")
    losses = -logsigmoid(torch.where(weights == 0, 0.0, margin)) * weights
    if reduction == "none":
        return losses
    total = weights.sum()
    return losses.sum() / torch.where(total == 0, 1.0, total)
