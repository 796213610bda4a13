"""Types and helpers shared by the three channels."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from composer_replication.loss.forward import FusedRows, PlainRows
from composer_replication.loss.metrics import Pull


class Result(NamedTuple):
    """The value, metrics and pull of a channel."""

    value: Tensor
    """0-dim, with gradient."""
    metrics: dict[str, float]
    pull: Pull


def watched(rows: FusedRows | PlainRows) -> Pull:
    """Return the pull of a channel that reads these rows and no others."""
    pull = Pull()
    pull.watch(rows.hidden if isinstance(rows, FusedRows) else rows.values)
    return pull


def divisor(weights: Tensor, denominator: Tensor | None, name: str) -> Tensor:
    """Return N of sum(w l) / N: the batch's own denominator, or the sum of the weights [n] of this call.

    Raises ValueError when N is not above 0.
    """
    total = weights.sum() if denominator is None else denominator
    if not float(total) > 0:
        raise ValueError(f"{name} must be above 0 when the channel has something to learn from, got {float(total)}")
    return total
