"""Metric names, and the statistics a run reports.

Names read `channel/what/stat`. Those under `time/`, `cost/`, `memory/` and `mesh/` depend on the machine and may differ between
two runs of the same seed; on one process every other metric is deterministic. A metric `X_se` is the standard error of the metric
`X`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from composer_replication.types import Group, Reward, Unscored

_MACHINE_DEPENDENT = ("time/", "cost/", "memory/", "mesh/")


def deterministic(values: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that must be equal in two runs of the same seed: all but `time/...`, `cost/...`,
    `memory/...` and `mesh/...`."""
    return {name: value for name, value in values.items() if not name.startswith(_MACHINE_DEPENDENT)}


def usd(amount: float) -> str:
    """Format an amount in USD: four decimals, or as many as its first two digits need; `n/a` where it is unknown."""
    if not math.isfinite(amount):
        return "n/a"
    decimals = 4 if amount == 0 else max(4, 1 - math.floor(math.log10(abs(amount))))
    return f"{amount:.{decimals}f}"


def mean_and_se(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error `s / sqrt(n)`, with the sample standard deviation `s` (n - 1 in the denominator).

    The standard error of fewer than two values is unknown and returned as NaN; so is the mean of none.
    """
    n = len(values)
    if n == 0:
        return math.nan, math.nan
    mean = math.fsum(values) / n
    if n == 1:
        return mean, math.nan
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return mean, math.sqrt(variance / n)


def pass_at_1(groups: Iterable[Group]) -> tuple[float, float]:
    """Mean over tasks of the share of a task's rollouts that passed, and the standard error over tasks.

    Rollouts of one task are not independent, so the task is the unit: with `p_i` the pass rate of task `i` over its scored
    rollouts, pass@1 is the mean of the `p_i` and its standard error is their sample standard deviation over the square root of
    the number of tasks (standard errors clustered by question; Miller 2024, "Adding Error Bars to Evals", arXiv:2411.00640).
    A rollout passed when its reward is at least 1. `Unscored` rollouts are left out, and a task without a scored rollout counts
    nowhere. Groups of one task are pooled. NaN for what cannot be estimated, as in `mean_and_se`.
    """
    rewards = ((group.task_id, t.reward) for group in groups for t in group.trajectories)
    return mean_and_se(list(pass_rates(rewards).values()))


def pass_rates(rewards: Iterable[tuple[str, Reward]]) -> dict[str, float]:
    """Return the share of the scored rollouts of each task that passed, from task ids and rewards; a task without a scored
    rollout is left out."""
    passed: defaultdict[str, list[float]] = defaultdict(list)
    for task_id, reward in rewards:
        if not isinstance(reward, Unscored):
            passed[task_id].append(float(reward >= 1.0))
    return {task_id: math.fsum(outcomes) / len(outcomes) for task_id, outcomes in passed.items()}
