"""The interface that every actor of the mesh shares."""

from __future__ import annotations

import asyncio
import os
from typing import ClassVar


class Member:
    """An actor whose death or stall is noticed, and whose CPU time is counted."""

    role: ClassVar[str] = ""
    """The role of the actor in a run; empty for an actor of another program."""

    async def watch(self) -> None:
        """Block forever: the pending call reveals the death of the process at once."""
        await asyncio.Event().wait()

    async def pulse(self) -> None:
        """Return at once, unless the process is stopped or its event loop hangs."""

    async def cpu_s(self) -> float:
        """Return the CPU-seconds of this process and of the processes it has waited for."""
        return sum(os.times()[:4])
