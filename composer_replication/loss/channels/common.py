"""Types and helpers shared by the three channels."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

Result: TypeAlias = tuple[Tensor, dict[str, float]]
"""A channel's value (0-dim, with gradient) and its metrics."""


def divisor(weights: Tensor, denominator: Tensor | None, name: str) -> Tensor:
    """Return N of sum(w l) / N: the batch's own denominator, or the sum of the weights [n] of this call.

    Raises ValueError when N is not above 0.
    """
    total = weights.sum() if denominator is None else denominator
    if not float(total) > 0:
        raise ValueError(f"{name} must be above 0 when the channel has something to learn from, got {float(total)}")
    return total
