"""Results of steps and of their micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


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
