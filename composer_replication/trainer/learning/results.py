"""Results of steps and of their micro-batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from composer_replication.loss.metrics import merge_metrics


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a step, or of one of its optimizer steps."""

    metrics: Mapping[str, float]
    off: Mapping[str, str]
    """Channels that had nothing to say in this batch, and why."""


class MicroBatch(NamedTuple):
    """Figures of a micro-batch after its backward pass."""

    metrics: Mapping[str, float]
    off: Mapping[str, str]
    total: float
    pulls: Mapping[str, float]
    """Squared norm of each channel's gradient on what it reads."""
    positions: int
    """As `LossComponents.positions`."""


def merged(results: Sequence[MicroBatch], **more: float) -> StepResult:
    """Return the result of an optimizer step from those of all its micro-batches, with `optimizer/NAME` for each of `more`."""
    metrics = merge_metrics([part.metrics for part in results])
    for channel in dict.fromkeys(name for part in results for name in part.pulls):
        metrics[f"{channel}/pull"] = math.sqrt(math.fsum(part.pulls.get(channel, 0.0) for part in results))
    metrics |= {"loss/total": sum(part.total for part in results), **{f"optimizer/{name}": value for name, value in more.items()}}
    metrics["optimizer/positions"] = float(sum(part.positions for part in results))
    off = {channel: why for channel, why in results[0].off.items() if all(channel in part.off for part in results)}
    return StepResult(metrics, off)
