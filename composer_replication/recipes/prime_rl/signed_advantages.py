"""Preference pairs as token weights: the gradient of the replay channel's loss, taken where the pair was scored.

A trainer that knows sums of `-weight * log-prob` over tokens alone takes the step of any loss of those log-probs when the weights
are its derivatives (`-dL / d log-prob`). They are exact at the policy that scored the pair, and off by what the policy has moved
since. The losses are those of the replay channel; automatic differentiation does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from composer_replication.config import ReplayConfig
from composer_replication.loss.channels.replay import Answers, pair_losses


@dataclass(frozen=True, slots=True)
class SignedPair:
    """The token weights of one pair."""

    chosen: float
    """Weight of each token of the chosen answer, at least 0."""
    rejected: float
    """Of each token of the rejected one, at most 0."""
    loss: float
    margin: float | None
    """As the replay channel reports it: above 0 where the policy prefers the chosen answer (more than its reference does); None
    where rejected answers do not count."""


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
        reference: summed log-probs of both answers under the reference, where the loss has one.

    Raises:
        ValueError: an answer has no token, or the loss lacks its reference.
    """
    if not chosen or not rejected:
        raise ValueError("a pair needs at least one token on each side")
    sides = [torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in (chosen, rejected)]
    answers = [
        Answers(side.sum()[None], side.new_tensor([len(side)]), None if known is None else side.new_tensor([known]))
        for side, known in zip(sides, reference or (None, None), strict=True)
    ]
    loss, margin = pair_losses(answers, options, torch.ones_like(answers[0].logprobs))
    read = sides if options.compares else sides[:1]
    for_chosen, *others = torch.autograd.grad(confidence * loss.sum(), read)
    for_rejected = others[0][0].item() if others else 0.0
    return SignedPair(-for_chosen[0].item(), -for_rejected, loss.item(), None if margin is None else margin.item())
