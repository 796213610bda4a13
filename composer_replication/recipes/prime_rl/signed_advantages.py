"""Preference pairs as token weights: the gradient of DPO or SimPO, taken where the pair was scored.

A trainer that knows sums of `-weight * log-prob` over tokens alone takes the step of any loss of those log-probs when the weights
are its derivatives (`-dL / d log-prob`). They are exact at the policy that scored the pair, and off by what the policy has moved
since. The losses are those of the replay channel; automatic differentiation does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from composer_replication.config import ReplayConfig
from composer_replication.distillation import dpo_loss, simpo_loss


@dataclass(frozen=True, slots=True)
class SignedPair:
    """The token weights of one pair."""

    chosen: float
    """Weight of each token of the chosen answer, at least 0."""
    rejected: float
    """Of each token of the rejected one, at most 0."""
    loss: float
    margin: float
    """As the replay channel reports it: above 0 where the policy prefers the chosen answer (more than its reference does)."""


def signed_advantages(
    chosen: Sequence[float],
    rejected: Sequence[float],
    options: ReplayConfig,
    *,
    confidence: float = 1.0,
    reference: tuple[float, float] | None = None,
) -> SignedPair:
    """Return the weights of a pair's tokens, whose log-probs under the policy are `chosen` and `rejected`.

    Args:
        confidence: weight of the pair, as in the replay channel.
        reference: summed log-probs of both answers under the reference; read by DPO.

    Raises:
        ValueError: an answer has no token, or DPO has no reference.
    """
    if not chosen or not rejected:
        raise ValueError("a pair needs at least one token on each side")
    sides = [torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in (chosen, rejected)]
    loss, margin = _loss(sides[0], sides[1], options, reference)
    for_chosen, for_rejected = torch.autograd.grad(confidence * loss, sides)
    return SignedPair(-for_chosen[0].item(), -for_rejected[0].item(), loss.item(), margin.item())


def _loss(
    chosen: Tensor, rejected: Tensor, options: ReplayConfig, reference: tuple[float, float] | None
) -> tuple[Tensor, Tensor]:
    """Return a pair's loss and margin. All tokens of a side have one derivative: both losses read their sum or their mean."""
    if options.variant == "simpo":
        means = chosen.mean()[None], rejected.mean()[None]
        loss = simpo_loss(*means, options.simpo_beta, options.simpo_gamma)
        return loss, options.simpo_beta * (means[0] - means[1]).detach()
    if reference is None:
        raise ValueError("DPO needs the reference's log-probs of both answers")
    sums = chosen.sum()[None], rejected.sum()[None]
    for_chosen, for_rejected = (chosen.new_tensor([value]) for value in reference)
    loss = dpo_loss(sums[0], sums[1], for_chosen, for_rejected, options.dpo_beta)
    return loss, options.dpo_beta * ((sums[0] - for_chosen) - (sums[1] - for_rejected)).detach()
