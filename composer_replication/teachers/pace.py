"""Rate limits of a teacher: concurrent requests, requests per minute, and pauses it asked for."""

from __future__ import annotations

import asyncio

from composer_replication.teachers.teacher import Teacher


class RateLimiter:
    """One teacher's. `async with pace.slot` holds one of its `max_concurrency` places; `turn` waits for one request's time."""

    def __init__(self, teacher: Teacher) -> None:
        self.slot = asyncio.Semaphore(teacher.max_concurrency)
        self._interval_s = 0.0 if teacher.requests_per_minute is None else 60.0 / teacher.requests_per_minute
        self._next = 0.0
        self._open_at = 0.0

    async def turn(self) -> None:
        """Return when a request may be sent: at least a rate's interval after the one before, and after any pause."""
        now = asyncio.get_running_loop().time
        while True:
            at = max(now(), self._next, self._open_at)
            self._next = at + self._interval_s
            if at > now():
                await asyncio.sleep(at - now())
            if now() >= self._open_at:  # else a pause began meanwhile, and the place in the row is gone
                return

    def pause(self, seconds: float) -> None:
        """Send nothing for this many seconds."""
        self._open_at = max(self._open_at, asyncio.get_running_loop().time() + seconds)
