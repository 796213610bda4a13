"""Rewards for a step from teachers' votes on the student's action: four shapes, all plain functions.

Votes are for actions, however they are written: with a `Scene` they are compared and clustered as for pairs (`agreement.compare`,
`agreement.cluster_votes`), without one by their canonical strings, which is cheap and takes two ways to write one action for two.
A vote that cannot be shown to be for or against the student's action is neither for nor against it. Models of one family make
correlated errors, so a family has one vote in all: its teachers share it, each in proportion to its weight. Without votes, in a
tie, or where too much is undecided, there is no reward: `Unscored`, never a zero.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from composer_replication.actions.agreement import (
    ActionComparison,
    Cluster,
    SameAction,
    Scene,
    Vote,
    cluster_votes,
    compare,
    why_no_pair,
)
from composer_replication.actions.calls import canonical_action, parse_action
from composer_replication.types import Reward, Unscored
from composer_replication.types.errors import ConfigError

_NO_VOTES, _TIE = Unscored("no votes"), Unscored("tie")
_UNDECIDED = Unscored("undecided whether the student agrees")
_CONTRADICTED = Unscored("the verdicts contradict each other")
_NO_WEIGHTS: Mapping[str, float] = {}
_EQUAL = 1e-9
_Action = TypeVar("_Action", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """The teachers' favourite action over the student's, as text."""

    chosen: str
    """The shortest of those who voted for it."""
    rejected: str
    """The student's."""
    margin: float
    """Share of the votes for the chosen action less that for the rejected, in (0, 1]: a `Pair`'s confidence."""


def plurality_reward(
    votes: Sequence[Vote], student: str, *, weights: Mapping[str, float] = _NO_WEIGHTS, scene: Scene | None = None
) -> Reward:
    """Return 1.0 when no action has more votes than the student's, else 0.0.

    `Unscored` in a tie that the student's action is part of, and where an action has as many votes as any and may be the
    student's.

    Args:
        student: the student's action as text (`composer_replication.actions.calls.render_action`).
        weights: by teacher, 1 for those not named.
        scene: what is known of the state; None compares canonical strings.

    Raises:
        ConfigError: a weight is negative or not finite.
        SandboxError: the scene's sandbox broke.
    """
    found = _leaders(votes, student, weights, scene)
    if isinstance(found, Unscored):
        return found
    leaders = [cluster.student for cluster, _ in found.leaders]
    if any(verdict.same for verdict in leaders):
        return 1.0 if len(leaders) == 1 else _TIE
    return 0.0 if all(verdict.diff for verdict in leaders) else _UNDECIDED


def weighted_reward(
    votes: Sequence[Vote], student: str, *, weights: Mapping[str, float] = _NO_WEIGHTS, scene: Scene | None = None
) -> Reward:
    """Share of the student's action in the votes that are for or against it, in [0, 1].

    `Unscored` where half of the votes or more are neither. Arguments and errors as in `plurality_reward`.
    """
    return variance_weighted_reward(votes, student, penalty=0.0, weights=weights, scene=scene)


def variance_weighted_reward(
    votes: Sequence[Vote],
    student: str,
    *,
    penalty: float = 0.5,
    weights: Mapping[str, float] = _NO_WEIGHTS,
    scene: Scene | None = None,
) -> Reward:
    """Return `mean - penalty * std` of the families' votes for the student's action: divided teachers are not evidence for it.

    With families that are each for or against, mean p and population standard deviation sqrt(p (1 - p)): 1 when all are for, 0
    when all are against, below p in between, and below 0 where few are for. `Unscored` as `weighted_reward`.

    Args:
        penalty: lambda, at least 0; 0 gives `weighted_reward`.

    Raises:
        ConfigError: as in `plurality_reward`, or `penalty` is negative or not finite.
        SandboxError: as in `plurality_reward`.
    """
    if not (math.isfinite(penalty) and penalty >= 0):
        raise ConfigError(f"penalty is {penalty}", fix="give a finite number of at least 0")
    clusters = _clusters(votes, student, weights, scene)
    if isinstance(clusters, Unscored):
        return clusters
    answer = {vote: cluster.student.answer for cluster in clusters for vote in cluster.votes}
    families = _families(votes, weights, lambda vote: answer[vote]).values()
    decided = [
        (weight * (1.0 - said.get(SameAction.UNDECIDED, 0.0)), weight * said.get(SameAction.SAME, 0.0))
        for weight, said in families
    ]
    total = math.fsum(weight for weight, _ in decided)
    if total < (0.5 + _EQUAL) * math.fsum(weight for weight, _ in families):
        return _UNDECIDED
    mean = math.fsum(own for _, own in decided) / total
    variance = math.fsum(weight * (own / weight - mean) ** 2 for weight, own in decided if weight > 0) / total
    return mean - penalty * math.sqrt(variance)


def preferred(
    votes: Sequence[Vote],
    student: str,
    *,
    min_margin: float = 0.0,
    weights: Mapping[str, float] = _NO_WEIGHTS,
    scene: Scene | None = None,
) -> Preference | str:
    """Return the pair (the action with most votes, the student's), or the reason why there is none.

    Args:
        min_margin: least margin that makes a pair; whatever it is, the margin is above 0.

    Raises:
        ConfigError, SandboxError: as in `plurality_reward`.
    """
    found = _leaders(votes, student, weights, scene)
    if isinstance(found, Unscored):
        return found.reason
    if len(found.leaders) > 1:
        return _TIE.reason
    ((best, most),) = found.leaders
    reason = why_no_pair(best.student)
    margin = most - found.own
    if reason or margin < min_margin:
        return reason or "too small a margin"
    return Preference(chosen=best.action, rejected=student, margin=margin)


@dataclass(frozen=True, slots=True)
class _Poll:
    leaders: Sequence[tuple[Cluster, float]]
    """The actions with most votes, each with its share of all votes."""
    own: float
    """Share of the student's action."""


def _leaders(votes: Sequence[Vote], student: str, weights: Mapping[str, float], scene: Scene | None) -> _Poll | Unscored:
    clusters = _clusters(votes, student, weights, scene)
    if isinstance(clusters, Unscored):
        return clusters
    place = {vote: i for i, cluster in enumerate(clusters) for vote in cluster.votes}
    families = _families(votes, weights, lambda vote: place[vote])
    total = math.fsum(weight for weight, _ in families.values())
    shares = [math.fsum(w * said.get(i, 0.0) for w, said in families.values()) / total for i in range(len(clusters))]
    polled = list(zip(clusters, shares, strict=True))
    return _Poll(
        [(cluster, share) for cluster, share in polled if math.isclose(share, max(shares), rel_tol=_EQUAL)],
        math.fsum(share for cluster, share in polled if cluster.student.same),
    )


def _clusters(votes: Sequence[Vote], student: str, weights: Mapping[str, float], scene: Scene | None) -> list[Cluster] | Unscored:
    """Return the clusters that votes of any weight support. Raises ConfigError."""
    for name, weight in weights.items():
        if not (math.isfinite(weight) and weight >= 0):
            raise ConfigError(f"the weight of teacher {name!r} is {weight}", fix="give a finite number of at least 0")
    if not any(weights.get(vote.teacher, 1.0) for vote in votes):
        return _NO_VOTES
    same = _by_canonical_string([*(vote.action for vote in votes), student]) if scene is None else _in_scene(scene)
    clusters, dissolved = cluster_votes(votes, student, same)
    return _CONTRADICTED if dissolved else clusters


def _by_canonical_string(actions: Sequence[str]) -> Callable[[str, str], ActionComparison]:
    form = {action: canonical_action(*parse_action(action)) for action in actions}

    def same(one: str, other: str) -> ActionComparison:
        return ActionComparison(SameAction.SAME if form[one] == form[other] else SameAction.DIFF, "canonical", "")

    return same


def _in_scene(scene: Scene) -> Callable[[str, str], ActionComparison]:
    @cache
    def verdict(one: str, other: str) -> ActionComparison:
        return compare(one, other, scene)

    return lambda one, other: verdict(min(one, other), max(one, other))


def _families(
    votes: Sequence[Vote], weights: Mapping[str, float], action: Callable[[Vote], _Action]
) -> dict[str, tuple[float, dict[_Action, float]]]:
    """Return for each family its weight, the mean of its teachers', and how its vote is shared among actions."""
    members: defaultdict[str, list[tuple[float, _Action]]] = defaultdict(list)
    for vote in votes:
        members[vote.family].append((weights.get(vote.teacher, 1.0), action(vote)))
    families: dict[str, tuple[float, dict[_Action, float]]] = {}
    for name, cast in members.items():
        total = math.fsum(weight for weight, _ in cast)
        if total > 0:
            actions: defaultdict[_Action, float] = defaultdict(float)
            for weight, said in cast:
                actions[said] += weight / total
            families[name] = (total / len(cast), dict(actions))
    return families
