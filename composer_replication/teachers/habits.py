"""Estimate what a teacher's calls usually cost, beside the most that they can cost.

A call is reserved at the most it can cost: one token for each byte sent, none of them from a cache, and the longest answer. Real
calls cost a small part of that, so what is held for a call whose end nobody saw goes by the calls that ended.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

RECENT = 200
"""Calls that are looked at."""
_FEWEST = 10
"""Calls that ended, below which nothing is known about the others."""
_QUANTILE, _MARGIN = 0.9, 1.25
"""Nine of ten calls cost no more than that share of the most they can cost; a quarter is added to it."""


class Habits:
    """Recent calls' costs, each as a share of the most that the call could cost, the newest last."""

    def __init__(self, shares: Iterable[float] = ()) -> None:
        self._shares = deque(shares, maxlen=RECENT)

    def add(self, usd: float, most: float) -> None:
        """Note what a call cost that could cost `most`."""
        if most > 0:
            self._shares.append(usd / most)

    def likely(self, most: float) -> float:
        """Return what a call that can cost `most` will hardly exceed; `most` while too little is known."""
        if len(self._shares) < _FEWEST:
            return most
        usual = sorted(self._shares)[math.ceil(_QUANTILE * len(self._shares)) - 1]
        return most * min(1.0, _MARGIN * usual)
