"""A brake on losses that push answers down, for when the chosen ones fall with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

FALLEN = -0.5
"""Mean distance of the chosen answers to the starting policy, in nats, below which they have fallen."""
_PAIRS = 16
"""Pairs that a mean is over, of the last steps."""
_TWICE = 2
_LEAST = 1 / 64


class ChosenDistance:
    """The mean distance of the last pairs' chosen answers to the starting policy, in nats: few pairs say little."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque()
        """Pairs of the last steps, and the mean distance of their chosen answers."""

    def follow(self, metrics: Mapping[str, float]) -> float | None:
        """Follow a step and return the mean over the last `_PAIRS` pairs or a few more; None for a step that says nothing, and
        until there are so many."""
        distance, pairs = metrics.get("replay/chosen/distance/mean"), metrics.get("replay/pairs", 0.0)
        if distance is None or pairs == 0:
            return None
        self._recent.append((pairs, distance))
        while sum(count for count, _ in self._recent) - self._recent[0][0] >= _PAIRS:
            self._recent.popleft()
        known = sum(count for count, _ in self._recent)
        return None if known < _PAIRS else sum(count * value for count, value in self._recent) / known

    def state_dict(self) -> list[list[float]]:
        """Return what a resumed run needs."""
        return [list(one) for one in self._recent]

    def load_state_dict(self, state: Sequence[Sequence[float]]) -> None:
        """Restore what `state_dict` returned."""
        self._recent = deque((count, value) for count, value in state)


class ReplayBrake:
    """The share of the preference loss that is applied: halved when the chosen answers have fallen twice in a row, doubled again
    when they are above the starting policy's log-probs. The anchor, which raises them, is never braked.

    It reads the distance to the starting policy, also of losses that have no reference themselves (SimPO); a step that does not
    know it says nothing.

    Losses that compare two answers reward a lower rejected one as well as a higher chosen one, and where both are much alike both
    fall (Razin et al., arXiv:2410.08847); accuracy and margin do not show it.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._distance = ChosenDistance()
        self._low = 0

    def follow(self, metrics: Mapping[str, float]) -> None:
        """Follow a step with pairs; one without says nothing."""
        mean = self._distance.follow(metrics)
        if mean is None:
            return
        self._low = self._low + 1 if mean < FALLEN else 0
        if self._low >= _TWICE:
            self.share, self._low = max(_LEAST, self.share / 2), 0
        elif mean > 0.0:
            self.share = min(1.0, self.share * 2)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"share": self.share, "recent": self._distance.state_dict(), "low": self._low}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.share, self._low = state["share"], state["low"]
        self._distance.load_state_dict(state["recent"])
