"""From teachers' votes on a student's action to a reward for that step: four shapes, all plain functions.

A vote is for the student when its canonical action is the student's. Models of one family make correlated errors, so a family
has one vote in all: its teachers share it, each in proportion to its weight. Without votes, or in a tie, there is no reward:
`Unscored`, never a zero.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from composer_replication.actions import canonical_action, parse_action
from composer_replication.agreement import Vote
from composer_replication.errors import ConfigError
from composer_replication.types import Reward, Unscored

__all__ = ["Preference", "plurality_reward", "preferred", "variance_weighted_reward", "weighted_reward"]

_NO_VOTES = Unscored("no votes")
_NO_WEIGHTS: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """The teachers' favourite action over the student's."""

    chosen: str
    """As text, the shortest of those who voted for it."""
    chosen_canonical: str
    rejected_canonical: str
    """The student's."""
    margin: float
    """Share of the votes for the chosen action less that for the rejected, in (0, 1]: a `Pair`'s confidence."""


def plurality_reward(votes: Sequence[Vote], student: str, *, weights: Mapping[str, float] = _NO_WEIGHTS) -> Reward:
    """1.0 when no action has more votes than the student's, else 0.0; `Unscored` in a tie that the student's action is part of.

    Args:
        student: canonical form of the student's action (`composer_replication.actions.canonical_action`).
        weights: by teacher, 1 for those not named.

    Raises:
        ConfigError: a weight is negative or not finite.
    """
    shares = _shares(votes, weights)
    if not shares:
        return _NO_VOTES
    most = max(shares.values())
    leaders = [action for action, share in shares.items() if math.isclose(share, most, rel_tol=1e-9)]
    if student in leaders and len(leaders) > 1:
        return Unscored("tie")
    return 1.0 if student in leaders else 0.0


def weighted_reward(votes: Sequence[Vote], student: str, *, weights: Mapping[str, float] = _NO_WEIGHTS) -> Reward:
    """Share of the votes for the student's action, in [0, 1]. Arguments and errors as in `plurality_reward`."""
    shares = _shares(votes, weights)
    return shares.get(student, 0.0) if shares else _NO_VOTES


def variance_weighted_reward(
    votes: Sequence[Vote], student: str, *, penalty: float = 0.5, weights: Mapping[str, float] = _NO_WEIGHTS
) -> Reward:
    """`mean - penalty * std` of the families' votes for the student's action: divided teachers are no evidence for it.

    With families that are each for or against, mean p and population standard deviation sqrt(p (1 - p)): 1 when all are for, 0
    when all are against, below p in between, and below 0 where few are for.

    Args:
        penalty: lambda, at least 0; 0 gives `weighted_reward`.

    Raises:
        ConfigError: as in `plurality_reward`, or `penalty` is negative or not finite.
    """
    if not (math.isfinite(penalty) and penalty >= 0):
        raise ConfigError(f"penalty is {penalty}", fix="give a finite number of at least 0")
    families = _families(votes, weights)
    total = math.fsum(weight for weight, _ in families.values())
    if total == 0:
        return _NO_VOTES
    mean = math.fsum(weight * actions.get(student, 0.0) for weight, actions in families.values()) / total
    variance = math.fsum(weight * (actions.get(student, 0.0) - mean) ** 2 for weight, actions in families.values()) / total
    return mean - penalty * math.sqrt(variance)


def preferred(
    votes: Sequence[Vote], student: str, *, min_margin: float = 0.0, weights: Mapping[str, float] = _NO_WEIGHTS
) -> Preference | str:
    """The pair (the action with most votes, the student's), or the reason why there is none.

    Args:
        min_margin: least margin that makes a pair; whatever it is, the margin is above 0.

    Raises:
        ConfigError: as in `plurality_reward`.
    """
    shares = _shares(votes, weights)
    if not shares:
        return _NO_VOTES.reason
    most = max(shares.values())
    leaders = [action for action, share in shares.items() if math.isclose(share, most, rel_tol=1e-9)]
    if student in leaders:
        return "the student agrees" if len(leaders) == 1 else "tie"
    if len(leaders) > 1:
        return "tie"
    margin = most - shares.get(student, 0.0)
    if margin < min_margin:
        return "too small a margin"
    text = min((v.action for v in votes if _canonical(v) == leaders[0]), key=lambda action: (len(action), action))
    return Preference(chosen=text, chosen_canonical=leaders[0], rejected_canonical=student, margin=margin)


def _canonical(vote: Vote) -> str:
    return canonical_action(*parse_action(vote.action))


def _shares(votes: Sequence[Vote], weights: Mapping[str, float]) -> dict[str, float]:
    """Share of each canonical action, adding up to 1; empty without a vote of any weight."""
    families = _families(votes, weights)
    total = math.fsum(weight for weight, _ in families.values())
    shares: defaultdict[str, float] = defaultdict(float)
    for weight, actions in families.values():
        for action, share in actions.items():
            shares[action] += weight * share / total
    return dict(shares)


def _families(votes: Sequence[Vote], weights: Mapping[str, float]) -> dict[str, tuple[float, dict[str, float]]]:
    """Of each family its weight, the mean of its teachers', and how its vote is shared among actions. Raises ConfigError."""
    for name, weight in weights.items():
        if not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"the weight of teacher {name!r} is {weight}", fix="give a finite number of at least 0")
    members: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for vote in votes:
        members[vote.family].append((weights.get(vote.teacher, 1.0), _canonical(vote)))
    families: dict[str, tuple[float, dict[str, float]]] = {}
    for name, cast in members.items():
        total = math.fsum(weight for weight, _ in cast)
        if total > 0:
            actions: defaultdict[str, float] = defaultdict(float)
            for weight, action in cast:
                actions[action] += weight / total
            families[name] = (total / len(cast), dict(actions))
    return families
