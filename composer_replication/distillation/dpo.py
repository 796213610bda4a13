"""Direct preference optimization (arXiv:2305.18290, equation 7)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn.functional import logsigmoid

__all__ = ["dpo_loss"]


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
    """-log sigmoid(beta [(chosen - ref_chosen) - (rejected - ref_rejected)]) over SUMMED log-probs [P] of policy and reference.

    `mean` divides by the number of pairs, or by the sum of `weights` [P] when given; `none` returns [P] (times the weights).
    No pairs give 0. The reference has no gradient. Raises ValueError when the shapes differ (nothing is broadcast).
    """
    shapes = {tuple(x.shape) for x in (chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps)}
    if len(shapes) != 1:
        raise ValueError(f"dpo_loss needs four tensors of one shape, got {sorted(shapes)}")
    margin = (chosen_logps - ref_chosen_logps.detach()) - (rejected_logps - ref_rejected_logps.detach())
    return reduce_pairs(-logsigmoid(beta * margin), weights, reduction)


def reduce_pairs(loss: Tensor, weights: Tensor | None, reduction: Literal["mean", "none"]) -> Tensor:
    """Weigh per-pair losses [P] and, for `mean`, divide by the sum of the weights; no pairs give 0 attached to the graph."""
    if weights is not None:
        if weights.shape != loss.shape:
            raise ValueError(f"weights {tuple(weights.shape)} do not match the pairs {tuple(loss.shape)}")
        loss = weights * loss
    if reduction == "none":
        return loss
    if reduction != "mean":
        raise ValueError(f"unknown reduction {reduction!r}: expected 'mean' or 'none'")
    if loss.numel() == 0:
        return loss.sum()
    return loss.mean() if weights is None else loss.sum() / weights.sum()
