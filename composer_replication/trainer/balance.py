"""Tells when a channel of the loss does what nobody wants: when it drowns another, or makes right answers less likely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from composer_replication.trainer.learning.brake import ChosenDistance
from composer_replication.types.channels import CHANNELS

DWARFED = 10.0
"""A channel that pulls this many times as hard as another is reported."""


def imbalance(metrics: Mapping[str, float], channels: Sequence[str] = CHANNELS) -> str | None:
    """Describe the strongest and the weakest channel of a step where one pulls at least `DWARFED` times as hard as the other.

    Reads `*/pull`, the norm of each channel's gradient on the hidden states before the head; channels without a gradient in the
    step do not count.

    Args:
        channels: those that share optimizer steps. One with steps of its own has its learning rate in place of a weight.
    """
    pulls = {name: metrics.get(f"{name}/pull", 0.0) for name in channels}
    felt = sorted((pull, name) for name, pull in pulls.items() if pull > 0)
    if len(felt) < 2 or felt[-1][0] < DWARFED * felt[0][0]:
        return None
    (least, weak), (most, strong) = felt[0], felt[-1]
    lower = f"lower loss.{strong}.weight or cap the channel with loss.{strong}.max_pull"
    fix = lower if weak == "rlvr" else f"raise loss.{weak}.weight"
    return f"the {strong} channel pulls {most / least:.0f} times as hard on the policy as {weak}; {fix} if that is not intended"


class ChosenAlarm:
    """Tells once when the chosen answers of the last pairs are less likely than under the starting policy in two steps in a row.

    Accuracy and margin rise all the while, because the rejected answers fall further (Razin et al., arXiv:2410.08847).
    """

    def __init__(self) -> None:
        self._distance = ChosenDistance()
        self._low = 0
        self._told = False

    def follow(self, metrics: Mapping[str, float]) -> str | None:
        """Follow a step; one without pairs, or without their distance to the start, says nothing."""
        standing = self._distance.follow(metrics)
        if standing is None or self._told:
            return None
        self._low = self._low + 1 if standing.fallen else 0
        if self._low < 2:
            return None
        self._told = True
        holds = "loss.replay.anchor" if "replay/accuracy" in metrics else "loss.replay.weight"
        return (
            f"the chosen answers of pairs are {-standing.distance:.1f} nats less likely than at the start; "
            f"lower optimizer.learning_rate, or raise {holds} so that they hold against the other channels"
        )
