"""CPU-seconds of this process, of every process it has waited for, and of the programs in its sandboxes."""

from __future__ import annotations

import os

from composer_replication.sandbox import Sandbox

__all__ = ["CpuClock"]


class CpuClock:
    """Measure CPU-seconds since the clock was made.

    Not counted: what making sandboxes takes, which their launcher does, and whatever runs elsewhere, local teachers included.
    """

    def __init__(self, sandbox: Sandbox | None = None) -> None:
        self._sandbox = sandbox
        self._start = self._now()

    def cpu_s(self) -> float:
        """Return CPU-seconds, user and system."""
        return self._now() - self._start

    def _now(self) -> float:
        return sum(os.times()[:4]) + (0.0 if self._sandbox is None else self._sandbox.cpu_s)
