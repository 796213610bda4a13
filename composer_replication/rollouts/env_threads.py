"""The threads in which environments block, and the time that one rollout may take."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class OutOfTimeError(Exception):
    """A rollout has used up its time; the message says in which call."""


class RolloutClock:
    """The time left to one rollout. It runs during `run` and stands still otherwise.

    Args:
        limit_s: None for no limit.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = self._left_s = limit_s

    async def run(self, phase: str, work: Awaitable[T]) -> T:
        """Return the result of `work`, which is cancelled when the time is over. Raises OutOfTimeError then, which names
        `phase`."""
        if self._left_s is None:
            return await work
        started = time.monotonic()
        timeout = asyncio.timeout(self._left_s)
        try:
            async with timeout:
                return await work
        except TimeoutError:
            if not timeout.expired():
                raise  # the environment's own
            raise OutOfTimeError(f"the rollout took longer than {self._limit_s:g} s, and was ended during: {phase}") from None
        finally:
            self._left_s -= time.monotonic() - started


class EnvThreads:
    """A fixed number of threads for the blocking calls of environments.

    Args:
        count: calls that run at a time.
    """

    def __init__(self, count: int) -> None:
        self.grading = asyncio.Semaphore(max(1, count - 1))
        """Acquired for a grade: one thread stays free for the turns of other rollouts."""
        self._pool = concurrent.futures.ThreadPoolExecutor(count, "rollout-env")
        self._free = asyncio.Semaphore(count)
        self._running: set[concurrent.futures.Future[Any]] = set()
        self._abandoned: set[concurrent.futures.Future[Any]] = set()

    async def run(self, phase: str, work: Callable[[], T], clock: RolloutClock) -> T:
        """Return the result of `work`. The clock runs from when a thread is free.

        Raises:
            OutOfTimeError: it took too long. It keeps its thread until it ends, and what comes of it is dropped.
        """
        await self._free.acquire()
        call = self._pool.submit(work)
        self._running.add(call)
        result = asyncio.wrap_future(call)

        def ended(_: asyncio.Future[T]) -> None:
            self._running.discard(call)
            self._free.release()
            if not result.cancelled():
                result.exception()  # an abandoned call's error is not logged

        result.add_done_callback(ended)
        try:
            return await clock.run(phase, asyncio.shield(result))
        except OutOfTimeError:
            self._abandoned.add(call)
            raise

    def shutdown(self, *, wait: bool) -> None:
        """Start no further call. With `wait`, wait for those that run, except the ones whose rollout has run out of time."""
        hanging = any(not call.done() for call in self._abandoned)
        self._pool.shutdown(wait=wait and not hanging, cancel_futures=True)
        if wait and hanging:
            concurrent.futures.wait(self._running - self._abandoned)
