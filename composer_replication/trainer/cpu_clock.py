"""CPU-seconds of this process, of every process it has waited for, and of the programs in its boxes."""

from __future__ import annotations

import os

from composer_replication.sandbox import Sandbox

__all__ = ["CpuClock"]


class CpuClock:
    """A clock that starts when it is made and can be told what an earlier process had spent.

    Not in it: what making the boxes takes, which their launcher does, and whatever runs elsewhere, local teachers included.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._start = self._now()

    def start_from(self, cpu_s: float) -> None:
        """Add what was spent before, as read from a checkpoint."""
        self._start = self._now() - cpu_s

    def cpu_s(self) -> float:
        """CPU-seconds, user and system."""
        return self._now() - self._start

    def _now(self) -> float:
        return sum(os.times()[:4]) + self._sandbox.cpu_s
