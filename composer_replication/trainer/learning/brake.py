"""A brake on losses that push answers down, for when the chosen ones fall with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_FALLEN, _FALLEN_A_TOKEN = 0.5, 0.015
"""Nats by which chosen answers are less likely than under the starting policy when they have fallen, in the mean: of an answer,
and of a token where that is more, as the log-prob of a long answer moves more."""
_PAIRS = 16
"""Pairs that a mean is over, of the last steps."""
_TWICE = 2
_LEAST = 1 / 64


class ChosenDistance:
    """How the last pairs' chosen answers stand to the starting policy: few pairs say little."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float, float]] = deque()
        """Of each of the last steps: pairs, the mean distance of their chosen answers in nats, and the mean number of tokens."""

    def follow(self, metrics: Mapping[str, float]) -> Standing | None:
        """Follow a step and return what holds for the last `_PAIRS` pairs or a few more; None for a step that says nothing, and
        until there are so many."""
        distance, pairs = metrics.get("replay/chosen/distance/mean"), metrics.get("replay/known/pairs", 0.0)
        if distance is None or pairs == 0:
            return None
        self._recent.append((pairs, distance, metrics["replay/chosen/tokens/mean"]))
        while sum(count for count, *_ in self._recent) - self._recent[0][0] >= _PAIRS:
            self._recent.popleft()
        known = sum(count for count, *_ in self._recent)
        if known < _PAIRS:
            return None
        return Standing(*(sum(one[0] * one[at] for one in self._recent) / known for at in (1, 2)))

    def state_dict(self) -> list[list[float]]:
        """Return what a resumed run needs."""
        return [list(one) for one in self._recent]

    def load_state_dict(self, state: Sequence[Sequence[float]]) -> None:
        """Restore what `state_dict` returned."""
        self._recent = deque((count, distance, tokens) for count, distance, tokens in state)


class Standing(NamedTuple):
    """How chosen answers stand to the starting policy, in the mean."""

    distance: float
    """Nats by which they are more likely."""
    tokens: float

    @property
    def fallen(self) -> bool:
        """Whether they are clearly less likely."""
        return self.distance < -max(_FALLEN, _FALLEN_A_TOKEN * self.tokens)


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
        standing = self._distance.follow(metrics)
        if standing is None:
            return
        self._low = self._low + 1 if standing.fallen else 0
        if self._low >= _TWICE:
            self.share, self._low = max(_LEAST, self.share / 2), 0
        elif standing.distance > 0.0:
            self.share = min(1.0, self.share * 2)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"share": self.share, "recent": self._distance.state_dict(), "low": self._low}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.share, self._low = state["share"], state["low"]
        self._distance.load_state_dict(state["recent"])
