"""Signals that a source adds to one of TRL's generation batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSignals:
    """Signals of one generation batch in addition to the rewards, on this process."""

    batch: Mapping[str, Tensor] = field(default_factory=dict)
    """Hints and pairs as `collate` gives them; `student_row` is the row of the generation batch, whose tokens are the prompt's
    and the completion's without padding."""
    advantages: Tensor | None = None
    """[rows], instead of TRL's own; NaN leaves a row out of the policy gradient and its denominator."""
    metrics: Mapping[str, float] = field(default_factory=dict)


SignalSource: TypeAlias = Callable[[Any, list[dict[str, Any]], Mapping[str, Tensor]], StepSignals]
"""Called after every generation, with the trainer, its dataset rows and what TRL made of them."""
