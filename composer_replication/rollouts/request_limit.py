"""A limit on the number of concurrent requests to a server, with a fair order."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator


class RequestLimit:
    """Allows at most this many requests in flight.

    Of the rollouts that wait, the one with the fewest turns so far goes first, and among equals the one that was ready first. So
    none falls behind, and few are left alone at the end, when the server is no longer full.

    Args:
        most: None for no limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._under_way = self._asked = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @contextlib.asynccontextmanager
    async def place(self, turns: int) -> AsyncIterator[None]:
        """Hold a place during the body.

        Args:
            turns: that the rollout has had.
        """
        if self._most is not None and self._under_way >= self._most:
            await self._wait(turns)
        else:
            self._under_way += 1
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, turns: int) -> None:
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked += 1
        heapq.heappush(self._waiting, (turns, self._asked, given))
        try:
            await given
        except asyncio.CancelledError:
            if not given.cancelled():
                self._leave()  # the place was given in the same moment
            raise

    def _leave(self) -> None:
        """Give the place to the next who waits."""
        while self._waiting:
            _, _, given = heapq.heappop(self._waiting)
            if not given.done():
                given.set_result(None)
                return
        self._under_way -= 1
