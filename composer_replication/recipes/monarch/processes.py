"""Processes that may die while an answer of theirs is awaited.

Monarch asks every process in turn how it is, and one that dies while it is being asked is missed for half a minute. The kernel
tells at once, of a process on this machine.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import select
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from composer_replication.recipes.monarch.library import SupervisionError

__all__ = ["Process", "answer", "at_home", "is_gone", "settle"]

T = TypeVar("T")


class Process(NamedTuple):
    """One process, not to be taken for a later one with its number."""

    pid: int
    began: int
    """Ticks since its machine started."""
    machine: str

    @classmethod
    def this(cls) -> Process:
        return cls(os.getpid(), _began(os.getpid()), _machine())


_home: list[contextvars.Context] = []


def settle() -> None:
    """Make the present context, which knows the actor, the one of all that this process asks of others."""
    _home[:] = [contextvars.copy_context()]


async def at_home(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives in the context of this process's actor: in another one, such as that of a thread of the actor's own
    making, Monarch would begin a second life as a driver."""
    return await asyncio.get_running_loop().create_task(work, context=_home[0].copy() if _home else None)


async def answer(process: Process, future: Any) -> Any:
    """What a call to the process gives. Raises ProcessLookupError when it is gone."""
    asked = asyncio.ensure_future(_awaited(future))
    try:
        descriptor = _watch(process)
        if descriptor is not None:
            await _first(asked, descriptor)
            if not asked.done():
                raise ProcessLookupError(f"process {process.pid} has ended")
        return await asked
    finally:
        asked.cancel()


def is_gone(process: Process) -> bool:
    """Whether it has ended; one on another machine is never known to have."""
    try:
        descriptor = _watch(process)
    except ProcessLookupError:
        return True
    if descriptor is None:
        return False
    try:
        return bool(select.select([descriptor], [], [], 0)[0])  # it may have ended and not been waited for
    finally:
        os.close(descriptor)


async def _awaited(future: Any) -> Any:
    try:
        return await future
    except SupervisionError as error:
        raise ProcessLookupError(str(error)) from error


async def _first(asked: asyncio.Future[Any], descriptor: int) -> None:
    """Wait for the answer or the end of the process; closes the descriptor."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(descriptor, end)
    try:
        await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _watch(process: Process) -> int | None:
    """A descriptor that becomes readable when the process ends; None when it is on another machine."""
    if process.machine != _machine():
        return None
    descriptor = os.pidfd_open(process.pid)
    if _began(process.pid) != process.began:
        os.close(descriptor)
        raise ProcessLookupError(f"process {process.pid} has ended, and another has its number")
    return descriptor


def _began(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error


def _machine() -> str:
    """Equal for processes that know each other by number: the same boot, and no container between them."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
