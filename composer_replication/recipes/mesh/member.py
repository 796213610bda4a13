"""What every actor of the mesh can do."""

from __future__ import annotations

import asyncio
import os
from typing import ClassVar

__all__ = ["Member"]


class Member:
    """An actor whose death or standstill is noticed, and whose CPU time is counted."""

    role: ClassVar[str] = ""
    """Which of the run's it plays; empty for an actor of somebody else's."""

    async def watch(self) -> None:
        """Never returns: the pending call is how a death is noticed at once."""
        await asyncio.Event().wait()

    async def pulse(self) -> None:
        """Returns at once: a process that is stopped, or whose event loop hangs, does not."""

    async def cpu_s(self) -> float:
        """CPU-seconds of this process and those it has waited for, from its start on."""
        return sum(os.times()[:4])
