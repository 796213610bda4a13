"""Losses on preference pairs, of the log-probs of a chosen and a rejected answer. One number for each pair.

Where a loss compares with a reference, d is the SUMMED log-prob of an answer under the policy minus that under the reference,
which has no gradient. Shapes are [P]; nothing is broadcast.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from composer_replication.distillation._numerics import check_within


def dpo_losses(chosen: Tensor, rejected: Tensor, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """Return -log sigmoid(beta (d_chosen - d_rejected)) of distances d [P] (DPO, arXiv:2305.18290, equation 7).

    With a `label_smoothing` in [0, 0.5) every pair counts as labelled the wrong way round with that probability (conservative
    DPO, Mitchell 2023, https://ericmitchell.ai/cdpo.pdf): the loss of the pair turned round is mixed in. Raises ValueError
    outside of it.
    """
    if not 0.0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing must be at least 0 and below 0.5, got {label_smoothing}")
    margin = beta * _difference(chosen, rejected)
    return -(1.0 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


def dpo_positive_losses(chosen: Tensor, rejected: Tensor, beta: float, penalty: float) -> Tensor:
    """Return -log sigmoid(beta (d_chosen - d_rejected - penalty max(0, -d_chosen))) of distances d [P] (DPO-positive,
    arXiv:2402.13228, equation 3): a chosen answer that falls below the reference costs `penalty` times as much."""
    check_within("penalty", penalty, 0.0)
    return -logsigmoid(beta * (_difference(chosen, rejected) - penalty * (-chosen).clamp(min=0.0)))


def ipo_losses(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return (d_chosen - d_rejected - 1 / (2 beta))^2 (IPO, arXiv:2310.12036, equation 17): the margin is pulled to a number
    instead of to infinity. TRL gives it distances per token [P] in place of sums, so that the number does not depend on the
    answers' length."""
    return (_difference(chosen, rejected) - 1.0 / (2.0 * beta)) ** 2


def apo_zero_losses(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return 1 - sigmoid(beta d_chosen) + sigmoid(beta d_rejected) of distances d [P] (APO-zero, arXiv:2408.06266):
    each answer for itself, up or down."""
    _difference(chosen, rejected)
    return torch.sigmoid(-beta * chosen) + torch.sigmoid(beta * rejected)


def kto_losses(chosen: Tensor, rejected: Tensor, beta: float, divergence: Tensor) -> Tensor:
    """Return 1 - sigmoid(beta (d_chosen - z)) + 1 - sigmoid(beta (z - d_rejected)) of distances d [P] (KTO, arXiv:2402.01306,
    equation 8, with both answers of a pair weighed alike).

    The reference point z is `divergence` [], an estimate of KL(policy || reference) without gradient, at least 0; at 0 this is
    APO-zero.
    """
    _difference(chosen, rejected)
    point = divergence.detach().clamp(min=0.0)
    return torch.sigmoid(-beta * (chosen - point)) + torch.sigmoid(beta * (rejected - point))


def simpo_losses(chosen: Tensor, rejected: Tensor, beta: float, gamma: float) -> Tensor:
    """Return -log sigmoid(beta (chosen - rejected) - gamma) of AVERAGE log-probs per token [P], without a reference (SimPO,
    arXiv:2405.14734, equation 6)."""
    return -logsigmoid(beta * _difference(chosen, rejected) - gamma)


def _difference(chosen: Tensor, rejected: Tensor) -> Tensor:
    if chosen.shape != rejected.shape:
        raise ValueError(f"chosen {tuple(chosen.shape)} and rejected {tuple(rejected.shape)} are not of one shape")
    return chosen - rejected
