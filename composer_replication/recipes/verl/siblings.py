"""Synchronisation of the rollouts of one prompt: a hint may come from a sibling that passed, so all have to be there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from composer_replication.types import Trajectory

FoundT = TypeVar("FoundT")


class Siblings(Generic[FoundT]):
    """The `count` rollouts of one group, which run in one event loop."""

    def __init__(self, count: int, finish: Callable[[Sequence[Trajectory]], FoundT]) -> None:
        """Make an empty group. `finish` is called once, in a thread, with all trajectories in the siblings' order."""
        self._count, self._finish = count, finish
        self._done: dict[int, Trajectory] = {}
        self._complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._found: asyncio.Task[FoundT] | None = None

    async def meet(self, number: int, trajectory: Trajectory) -> FoundT:
        """Hand in the trajectory of sibling `number` (from 0), and return the result of `finish` once all are in.

        Raises what `finish` raises, or the error given to `leave`.
        """
        self._done[number] = trajectory
        if len(self._done) == self._count and not self._complete.done():
            self._complete.set_result(None)
        await asyncio.shield(self._complete)
        if self._found is None:
            ordered = [self._done[i] for i in sorted(self._done)]
            self._found = asyncio.create_task(asyncio.to_thread(self._finish, ordered))
        return await asyncio.shield(self._found)

    def leave(self, error: BaseException) -> None:
        """Release the siblings that wait for one that failed and will not come."""
        if not self._complete.done():
            self._complete.set_exception(error)
            self._complete.exception()  # looked at: perhaps nobody waits yet
