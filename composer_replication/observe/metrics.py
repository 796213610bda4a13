"""Metric names, and the statistics a run reports.

Names read `channel/what/stat`. Those under `time/`, `cost/`, `memory/` and `mesh/` depend on the machine and may differ between
two runs of the same seed; on one process every other metric is deterministic. A metric `X_se` is the standard error of the metric
`X`.
"""

from __future__ import annotations

import math
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


def pass_at_k(rewards: Iterable[tuple[str, Reward]], k: int) -> list[float]:
    """Return for each task the probability that one of `k` rollouts passes, estimated from all of its scored rollouts.

    It is `1 - C(n - c, k) / C(n, k)` with `c` of `n` rollouts passed, which is unbiased (Chen et al. 2021, "Evaluating Large
    Language Models Trained on Code", arXiv:2107.03374, equation 1). Tasks with fewer than `k` scored rollouts are left out.
    """
    return [1.0 - math.comb(n - passed, k) / math.comb(n, k) for passed, n in _counts(rewards).values() if n >= k]


def interval_95(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of values in [0, 1], one per task.

    It is Student's t over tasks. Where all tasks have 0, or all have 1, it is the exact binomial interval for so many tasks
    (Clopper and Pearson 1934): equal outcomes do not mean certainty. NaN where a single value, or none, says nothing.
    """
    mean, se = mean_and_se(values)
    if values and mean in (0.0, 1.0):
        bound = 0.025 ** (1 / len(values))
        return (0.0, 1.0 - bound) if mean == 0.0 else (bound, 1.0)
    if not math.isfinite(se):
        return math.nan, math.nan
    half = t_975(len(values) - 1) * se
    return max(0.0, mean - half), min(1.0, mean + half)


def t_975(freedom: int) -> float:
    """Return the 97.5th percentile of Student's t: exact for 1 and 2 degrees of freedom, within 0.04 for 3 and 4, and within
    0.001 above (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5)."""
    if freedom == 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    z = 1.959963984540054
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / math.pow(freedom, power) for power, term in enumerate(terms, start=1))


def pass_rates(rewards: Iterable[tuple[str, Reward]]) -> dict[str, float]:
    """Return the share of the scored rollouts of each task that passed, from task ids and rewards; a task without a scored
    rollout is left out."""
    return {task_id: passed / n for task_id, (passed, n) in _counts(rewards).items()}


def _counts(rewards: Iterable[tuple[str, Reward]]) -> dict[str, tuple[int, int]]:
    """Return for each task with a scored rollout how many passed, and how many were scored."""
    found: dict[str, tuple[int, int]] = {}
    for task_id, reward in rewards:
        if not isinstance(reward, Unscored):
            passed, n = found.get(task_id, (0, 0))
            found[task_id] = passed + (reward >= 1.0), n + 1
    return found
