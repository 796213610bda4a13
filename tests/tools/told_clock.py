"""A clock whose pace a test sets: a deadline passes when the test says so, however busy the machine is."""

from __future__ import annotations

import time

LONG_S = 600.0
"""A deadline that only a clock that hurries gets to."""
HURRY = 1e6


class ToldClock:
    """Runs as fast as the machine's, or `pace` times as fast; sleeping takes no longer than a look is worth."""

    def __init__(self, pace: float = 1.0) -> None:
        self._then, self._since, self._pace = 0.0, time.monotonic(), pace

    def run(self, pace: float) -> None:
        """From now on so fast."""
        self._then, self._since, self._pace = self.now(), time.monotonic(), pace

    def now(self) -> float:
        return self._then + self._pace * (time.monotonic() - self._since)

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.01))
