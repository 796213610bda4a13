"""Estimates of what a gate misses, from a random sample of the states that it would have left out."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass

from composer_replication.types.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """How many valuable states were left out and not drawn, with what is known for sure about those that were drawn."""

    estimate: float
    """Valuable states among all that were left out; unbiased over the draws. Those that were drawn are part of it."""
    low: float
    high: float
    """Bounds at the requested confidence level."""
    found: int
    """Valuable states that were drawn."""
    drawn: int
    unanswered: int
    """How many of those drawn brought no verdict; `high` counts each as valuable."""
    population: int
    """States that were left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """A sample of the states that a gate leaves out: each is drawn with the same chance, independently of all others."""

    chance: float
    population: int
    drawn: frozenset[str]

    def missed(self, valuable: Collection[str], *, unanswered: Collection[str] = (), confidence: float = 0.95) -> Missed:
        """Return the Horvitz-Thompson estimate `found / chance` (Horvitz and Thompson 1952, JASA 47, equation 3) and exact
        bounds.

        The number of valuable states that are drawn is binomial, of as many trials as there are valuable states and with
        success probability `chance`; the bounds are the numbers of trials that the two tails do not rule out (Clopper and
        Pearson's construction, Biometrika 26, 1934, for the number of trials).

        Args:
            valuable: ids of states that gave what replay is for, a pair; those not drawn do not matter.
            unanswered: ids of states whose teachers gave no answer.

        Raises:
            ConfigError: there is no audit, as its chance is 0.
        """
        if self.chance == 0.0:
            raise ConfigError("nothing was audited, so what was missed is unknown", fix="give the gate an audit above 0")
        found = len(self.drawn & set(valuable))
        silent = len((self.drawn & set(unanswered)) - set(valuable))
        tail = (1.0 - confidence) / 2.0
        most = self.population - (len(self.drawn) - found - silent)
        return Missed(
            estimate=found / self.chance,
            low=_first(lambda n: _cdf(found - 1, n, self.chance) < 1.0 - tail, found, most),
            high=_first(lambda n: _cdf(found + silent, n, self.chance) <= tail, found + silent, most + 1) - 1,
            found=found,
            drawn=len(self.drawn),
            unanswered=silent,
            population=self.population,
        )


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least n in [low, high] from which on the monotone `holds` is true; `high` when there is none below it."""
    return low + bisect_left(range(low, high), True, key=holds)


def _cdf(most: int, trials: int, chance: float) -> float:
    """Return the probability of at most `most` successes."""
    if most >= trials:
        return 1.0
    if chance == 1.0 or most < 0:
        return 0.0
    log_p, log_q = math.log(chance), math.log1p(-chance)
    ways = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(ways - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log_p + (trials - k) * log_q)
        for k in range(most + 1)
    )
