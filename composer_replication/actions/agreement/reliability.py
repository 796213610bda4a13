"""Estimate how often each family of teachers is right from how they agree with one another.

The model of Dawid and Skene (1979, https://doi.org/10.2307/2346806), fitted by their EM algorithm, with one error rate per
annotator: a state's actions have no names in common with another's, so there is no table of which is mistaken for which. Given
the right one of a state's `K` actions, family `f` proposes it with probability `p_f`, and each other with `(1 - p_f) / (K - 1)`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

_MOST_ROUNDS, _SETTLED = 500, 1e-9
PRIOR_RIGHT, PRIOR_WRONG = 4.0, 1.0
"""Votes that every family has cast before the first, so that little data says little."""


@dataclass(frozen=True, slots=True)
class Ballot:
    """The families' answers at one state."""

    votes: Mapping[str, Hashable]
    """Family -> its action, under any name that is equal for equal actions."""
    right: Hashable | None = None
    """The action that turned out to be right, where that is known."""


def family_accuracies(ballots: Sequence[Ballot]) -> dict[str, float]:
    """Map each family to `p_f` in (0, 1): the most probable under a Beta(PRIOR_RIGHT + 1, PRIOR_WRONG + 1) prior.

    `K` is one more than the actions seen at a state, for all of them may be wrong. States where a single family voted and no
    outcome is known say nothing and are left out. A family that has no other vote is at the prior's mode.
    """
    used = [b for b in ballots if len(b.votes) > 1 or (b.votes and b.right is not None)]
    start = PRIOR_RIGHT / (PRIOR_RIGHT + PRIOR_WRONG)
    accuracy = {family: start for ballot in ballots for family in ballot.votes}
    for _ in range(_MOST_ROUNDS):
        right = dict.fromkeys(accuracy, PRIOR_RIGHT)
        total = dict.fromkeys(accuracy, PRIOR_RIGHT + PRIOR_WRONG)
        for ballot in used:
            posterior = _posterior(ballot, accuracy)
            for family, action in ballot.votes.items():
                right[family] += posterior.get(action, 0.0)
                total[family] += 1.0
        updated = {family: right[family] / total[family] for family in accuracy}
        moved = max((abs(updated[f] - accuracy[f]) for f in accuracy), default=0.0)
        accuracy = updated
        if moved < _SETTLED:
            break
    return accuracy


def _posterior(ballot: Ballot, accuracy: Mapping[str, float]) -> dict[Hashable, float]:
    """Return the probability that each action voted for is the right one; the rest, up to 1, is that none is."""
    if ballot.right is not None:
        return {ballot.right: 1.0}
    actions = set(ballot.votes.values())
    wrong = len(actions)
    logs: dict[Hashable, float] = {}
    for candidate in (*actions, _NONE_OF_THEM):
        logs[candidate] = sum(
            math.log(accuracy[family] if action == candidate else (1 - accuracy[family]) / wrong)
            for family, action in ballot.votes.items()
        )
    top = max(logs.values())
    weights = {candidate: math.exp(value - top) for candidate, value in logs.items()}
    total = sum(weights.values())
    return {candidate: weight / total for candidate, weight in weights.items() if candidate is not _NONE_OF_THEM}


_NONE_OF_THEM = object()
