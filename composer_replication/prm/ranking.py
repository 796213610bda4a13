"""Scores of trajectories from the probabilities of their steps, and the best of several."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

Aggregation: TypeAlias = Literal["product", "min"]


def trajectory_score(probabilities: Sequence[float], how: Aggregation = "product") -> float:
    """Return the probability that every step is good (`product`, as Lightman et al., arXiv 2305.20050, section 2.6) or that of
    the weakest one (`min`, as Math-Shepherd, arXiv 2312.08935); 0.0 for a trajectory without steps, which has done nothing.

    Raises:
        ValueError: a probability is outside of [0, 1].
    """
    if any(not 0.0 <= p <= 1.0 for p in probabilities):
        raise ValueError("a probability is outside of [0, 1]")
    if not probabilities:
        return 0.0
    return math.prod(probabilities) if how == "product" else min(probabilities)


def best_of(scores: Mapping[str, float], tasks: Mapping[str, str]) -> dict[str, str]:
    """Return the trajectory with the highest score of each task; of equals the one that comes first by name.

    Args:
        scores: by trajectory.
        tasks: of each trajectory.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(scores):
        groups[tasks[name]].append(name)
    return {task: max(names, key=lambda name: scores[name]) for task, names in groups.items()}
