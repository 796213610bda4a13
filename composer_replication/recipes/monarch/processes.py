"""Calls to processes that may die before they answer.

Monarch asks every process in turn how it is, and one that dies while it is being asked is missed for half a minute. The kernel
tells at once, of a process on this machine.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from composer_replication.recipes.mesh.processes import Process, watch
from composer_replication.recipes.monarch.library import SupervisionError

T = TypeVar("T")


_home: list[contextvars.Context] = []


def settle() -> None:
    """Make the present context, which knows the actor, the context of every call from this process to others."""
    _home[:] = [contextvars.copy_context()]


async def at_home(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in the context of this process's actor, and return its result.

    In another context, such as that of a thread that the actor has started, Monarch would treat the process as a driver.
    """
    return await asyncio.get_running_loop().create_task(work, context=_home[0].copy() if _home else None)


async def answer(process: Process, future: Any) -> Any:
    """Return the result of a call to a process. Raises ProcessLookupError when the process is gone."""
    asked = asyncio.ensure_future(_awaited(future))
    try:
        descriptor = watch(process)
        if descriptor is not None:
            await _first(asked, descriptor)
            if not asked.done():
                raise ProcessLookupError(f"process {process.pid} has ended")
        return await asked
    finally:
        asked.cancel()


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
