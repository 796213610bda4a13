"""Measures of how well probabilities separate good steps from bad ones. Plain Python over plain numbers; labels are probabilities
in [0, 1], and where a yes or no is needed a step is good from 0.5 on."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bin:
    """The steps whose probability fell into one interval."""

    probability: float
    """Their mean probability."""
    label: float
    """Their mean label."""
    count: int


def auroc(labels: Sequence[float], scores: Sequence[float]) -> float:
    """Return the probability that a good step scores above a bad one, ties counting half (Mann-Whitney); NaN when there is only
    one kind."""
    good, bad, below, won = 0, 0, 0, 0.0
    for positives, negatives in _by_score(labels, scores):
        won += positives * (below + negatives / 2)
        below += negatives
        good, bad = good + positives, bad + negatives
    return won / (good * bad) if good and bad else math.nan


def roc(labels: Sequence[float], scores: Sequence[float]) -> list[tuple[float, float]]:
    """Return points (share of bad steps accepted, share of good steps accepted) from (0, 0) to (1, 1), as the threshold falls;
    empty when there is only one kind of step."""
    groups = _by_score(labels, scores)[::-1]
    good, bad = sum(p for p, _ in groups), sum(n for _, n in groups)
    if not good or not bad:
        return []
    points, accepted, passed = [(0.0, 0.0)], 0, 0
    for positives, negatives in groups:
        accepted, passed = accepted + positives, passed + negatives
        points.append((passed / bad, accepted / good))
    return points


def _by_score(labels: Sequence[float], scores: Sequence[float]) -> list[tuple[int, int]]:
    """Count good and bad steps at each score, in ascending order of scores."""
    counts: defaultdict[float, list[int]] = defaultdict(lambda: [0, 0])
    for label, score in zip(labels, scores, strict=True):
        counts[score][label < 0.5] += 1
    return [(counts[score][0], counts[score][1]) for score in sorted(counts)]


def accuracy(labels: Sequence[float], probabilities: Sequence[float]) -> float:
    """Share of steps on the right side of 0.5; NaN without steps."""
    right = [(label >= 0.5) == (p >= 0.5) for label, p in zip(labels, probabilities, strict=True)]
    return sum(right) / len(right) if right else math.nan


def log_loss(labels: Sequence[float], probabilities: Sequence[float]) -> float:
    """Mean cross-entropy in nats; NaN without steps. Probabilities are kept 1e-12 away from 0 and 1."""

    def nats(label: float, p: float) -> float:
        p = min(max(p, 1e-12), 1 - 1e-12)
        return -label * math.log(p) - (1 - label) * math.log1p(-p)

    losses = [nats(label, p) for label, p in zip(labels, probabilities, strict=True)]
    return math.fsum(losses) / len(losses) if losses else math.nan


def calibration(labels: Sequence[float], probabilities: Sequence[float], *, bins: int = 10) -> list[Bin]:
    """Sort the steps into `bins` equal intervals of probability, empty ones left out."""
    members: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for label, p in zip(labels, probabilities, strict=True):
        members[min(bins - 1, int(p * bins))].append((p, label))
    return [
        Bin(math.fsum(p for p, _ in found) / len(found), math.fsum(label for _, label in found) / len(found), len(found))
        for _, found in sorted(members.items())
    ]


def expected_calibration_error(labels: Sequence[float], probabilities: Sequence[float], *, bins: int = 10) -> float:
    """Mean distance between probability and label over `calibration`'s intervals, weighted by their steps (Naeini et al., AAAI
    2015); NaN without steps."""
    found = calibration(labels, probabilities, bins=bins)
    return sum(b.count * abs(b.probability - b.label) for b in found) / len(labels) if found else math.nan


def bootstrap_interval(
    labels: Sequence[float], scores: Sequence[float], groups: Sequence[str], *, samples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % percentile interval of the AUROC, drawing whole groups with replacement: the steps of one task are not
    independent.

    Args:
        groups: of each step, e.g. its task. Draws with only one kind of step are left out; NaN when all are.
    """
    members: defaultdict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    names, rng = sorted(members), random.Random(seed)
    drawn = []
    for _ in range(samples):
        chosen = [i for _ in names for i in members[rng.choice(names)]]
        drawn.append(auroc([labels[i] for i in chosen], [scores[i] for i in chosen]))
    values = sorted(value for value in drawn if not math.isnan(value))
    if not values:
        return math.nan, math.nan
    return values[int(0.025 * (len(values) - 1))], values[math.ceil(0.975 * (len(values) - 1))]
