"""Settings that stay the same from round to round, and the clock for deadlines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from composer_replication.diloco.codecs.protocol import Codec
from composer_replication.types.errors import RoundError

T = TypeVar("T")

_FIRST_LOOK_S, _SLOWER = 0.005, 1.5


class Clock:
    """The machine's monotonic clock, which is never adjusted; clocks of different replicas are never compared."""

    def now(self) -> float:
        """Return seconds since an arbitrary moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Setting:
    """One replica's place in a run, and how long it waits for what."""

    run: str
    """Fingerprint that every object carries."""
    rank: int
    world_size: int
    codec: Codec
    timeout_s: float
    """Most for a whole round."""
    quorum: int
    """The fewest replicas that a round is held with."""
    deadline_s: float
    """Seconds after which a round is held without the missing replicas."""
    takeover_s: float
    """Seconds without a chunk of the mean after which another replica computes it."""
    poll_s: float
    """Longest pause between two looks."""
    norm_gate: float | None
    """A contribution whose norm is more than this many times the members' median is refused."""
    clock: Clock = field(default_factory=Clock)

    @property
    def flat(self) -> bool:
        """True when every replica reads what every other one sent, instead of a chunk of it."""
        return self.world_size == 2 or self.codec.sparse


class Stopwatch:
    """The time that a round has taken."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._start = setting.clock.now()

    @property
    def passed(self) -> float:
        """Seconds since the round began here."""
        return self._setting.clock.now() - self._start

    def until(self, look: Callable[[], T | None], waiting_for: Callable[[], str]) -> T:
        """Poll `look` until it returns something, and return that.

        Raises:
            RoundError: it has not within the time of a round.
        """
        pause = _FIRST_LOOK_S
        while True:
            began = self.passed
            found = look()
            if found is not None:
                return found
            if self.passed > self._setting.timeout_s:
                raise RoundError(
                    f"after {self._setting.timeout_s:g} s rank {self._setting.rank} still waits for {waiting_for()}",
                    fix="see what became of these replicas, or allow a lower quorum and a deadline",
                )
            pause = min(max(pause, self.passed - began), self._setting.poll_s)  # a slow store is polled less often
            self._setting.clock.sleep(pause)
            pause *= _SLOWER
