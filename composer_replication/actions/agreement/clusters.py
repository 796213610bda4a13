"""Agreement of teachers: votes for the same action form a cluster, and model families are counted, not models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from composer_replication.actions.agreement.verdict import ActionComparison, SameAction

_EQUAL = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One teacher's valid action."""

    teacher: str
    family: str
    action: str
    """The action as text (`composer_replication.actions.calls.render_action`)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Votes for one action."""

    votes: tuple[Vote, ...]
    confidence: float
    """The least of the verdicts that join them; 1 for one vote alone."""
    student: ActionComparison
    """True when the student's action is in this cluster."""

    @property
    def action(self) -> str:
        """The shortest of the texts."""
        return min((vote.action for vote in self.votes), key=lambda text: (len(text), text))

    @property
    def families(self) -> frozenset[str]:
        return frozenset(vote.family for vote in self.votes)

    def weight(self, weights: Mapping[str, float]) -> float:
        """Sum over its families; a family without a weight has 1."""
        return sum(weights.get(family, 1.0) for family in self.families)


@dataclass(frozen=True, slots=True)
class Choice:
    """The cluster that won."""

    cluster: Cluster
    confidence: float
    """In (0, 1]: its share of all votes' weight, times the confidence of the verdicts it rests on."""


def cluster_votes(votes: Sequence[Vote], student: str, same: Callable[[str, str], ActionComparison]) -> tuple[list[Cluster], int]:
    """Group votes into clusters; also return how many clusters were dissolved because they contradict themselves.

    A cluster is a connected component of SAME over the votes and the student's action, which has no vote. Where two of its
    members are certainly different, at least one verdict is wrong, and it is unknown which: the component is not a cluster.

    Args:
        same: compares two actions; has to be symmetric.
    """
    actions = [vote.action for vote in votes] + [student]
    size = len(actions)
    verdicts = {(i, j): same(actions[i], actions[j]) for i in range(size) for j in range(i + 1, size)}
    found: list[Cluster] = []
    dissolved = 0
    for members in _components(size, [pair for pair, verdict in verdicts.items() if verdict.same]):
        inner = [verdicts[i, j] for i in members for j in members if i < j]
        inside = [i for i in members if i < len(votes)]
        if any(verdict.diff for verdict in inner):
            dissolved += 1
        elif inside:
            joining = min((v.confidence for v in inner if v.same), default=1.0)
            to_student = [verdicts[i, size - 1] for i in inside]
            found.append(Cluster(tuple(votes[i] for i in inside), joining, _most_decided(to_student)))
    return found, dissolved


def _components(size: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the connected components of a graph over 0..size-1, each in order."""
    label = list(range(size))
    for one, other in edges:
        old, new = label[other], label[one]
        label = [new if name == old else name for name in label]
    return [[i for i in range(size) if label[i] == name] for name in sorted(set(label))]


def _most_decided(verdicts: Sequence[ActionComparison]) -> ActionComparison:
    """Combine the members' verdicts on the student: SAME if any says so, since they are one action; then DIFF if any does."""
    order = (SameAction.SAME, SameAction.DIFF, SameAction.UNDECIDED)
    return min(verdicts, key=lambda verdict: (order.index(verdict.answer), -verdict.confidence))


def choose(clusters: Sequence[Cluster], *, threshold: int, weights: Mapping[str, float]) -> Choice | str:
    """Return the heaviest cluster, if at least `threshold` families are in it; else the reason why there is none.

    Families, not teachers, are counted: models of one family make correlated errors, and a majority of them is not evidence.
    """
    heavy = sorted(((cluster.weight(weights), i) for i, cluster in enumerate(clusters)), reverse=True)
    if not heavy or max(len(cluster.families) for cluster in clusters) < threshold:
        return "too few teachers agree"
    if len(heavy) > 1 and heavy[0][0] - heavy[1][0] < _EQUAL:
        return "tie"
    best = clusters[heavy[0][1]]
    if len(best.families) < threshold:
        return "too few teachers agree"
    total = sum(weight for weight, _ in heavy)
    return Choice(best, heavy[0][0] / total * best.confidence)


def why_no_pair(student: ActionComparison) -> str:
    """Return why an action and the student's do not form a pair, from the verdict on the two; empty when they are one."""
    if student.same:
        return "the student agrees"
    if student.diff:
        return ""
    return student.why if student.method == "intent" else "undecided whether the student agrees"
