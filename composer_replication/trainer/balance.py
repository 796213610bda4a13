"""Tells when one channel of the loss drowns another."""

from __future__ import annotations

from collections.abc import Mapping

from composer_replication.config import LossConfig

DWARFED = 10.0
"""A channel that pulls this many times as hard as another is reported."""


def imbalance(metrics: Mapping[str, float]) -> str | None:
    """Describe the strongest and the weakest channel of a step where one pulls at least `DWARFED` times as hard as the other.

    Reads `*/pull`, the norm of each channel's gradient on the hidden states before the head; channels without a gradient in the
    step do not count.
    """
    pulls = {name: metrics.get(f"{name}/pull", 0.0) for name in LossConfig.model_fields}
    felt = sorted((pull, name) for name, pull in pulls.items() if pull > 0)
    if len(felt) < 2 or felt[-1][0] < DWARFED * felt[0][0]:
        return None
    (least, weak), (most, strong) = felt[0], felt[-1]
    fix = f"lower loss.{strong}.weight" if weak == "rlvr" else f"raise loss.{weak}.weight"
    return f"the {strong} channel pulls {most / least:.0f} times as hard on the policy as {weak}; {fix} if that is not intended"
