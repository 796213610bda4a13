"""CPU-seconds of this process and of every process it has waited for."""

from __future__ import annotations

import os

__all__ = ["Spending"]


class Spending:
    """A clock that starts when it is made and can be told what an earlier process had spent."""

    def __init__(self) -> None:
        self._start = _now()

    def start_from(self, cpu_s: float) -> None:
        """Add what was spent before, as read from a checkpoint."""
        self._start = _now() - cpu_s

    def cpu_s(self) -> float:
        """CPU-seconds, user and system."""
        return _now() - self._start


def _now() -> float:
    return sum(os.times()[:4])
