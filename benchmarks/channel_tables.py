"""Tell what the runs of `channels` say: a table, and what does not hold in it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from channel_arms import NOTHING_HELD, SEEDS, grid

from composer_replication.observe.metrics import t_975

_SPOILT = ("wrong", "long answers", NOTHING_HELD)
"""How the names of arms end that are not of a default run."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over the seeds, and half the width of its 95 % t interval."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Return the interval of one value for each seed."""
        if len(values) < 2:
            return cls(statistics.fmean(values), math.inf)
        return cls(statistics.fmean(values), t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values)))


def table(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each arm, with means and intervals over the seeds."""
    found = []
    for arm in grid():
        mine = [run for run in runs if (run["arm"]["name"], run["arm"]["rate"]) == (arm.name, arm.rate)]
        if not mine:
            continue
        after = Interval.of([run["pass_at_1"] for run in mine])
        gained = Interval.of([run["pass_at_1"] - run["pass_at_1_before"] for run in mine])
        found.append(
            {
                "arm": arm.name,
                "rate": arm.rate,
                "seeds": len(mine),
                "pass_at_1": round(after.mean, 3),
                "pass_at_1_half": round(after.half, 3),
                "gained": round(gained.mean, 3),
                "gained_half": round(gained.half, 3),
                "on_script": round(statistics.fmean(run["on_script"] for run in mine), 3),
                "chosen": round(statistics.fmean(run["chosen"]["after"] - run["chosen"]["before"] for run in mine), 2),
                "rejected": round(statistics.fmean(run["rejected"]["after"] - run["rejected"]["before"] for run in mine), 2),
                "rollouts": round(statistics.fmean(run["rollouts"] for run in mine)),
                "cpu_s": round(statistics.fmean(run["cpu_s"] for run in mine), 1),
            }
        )
    return found


def harms(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the arms with a channel whose pass@1 is below that of the run without it, beyond the interval of the difference.
    Without rollouts that run is the start."""
    by_key = {(run["arm"]["name"], run["arm"]["rate"], run["seed"]): run for run in runs}
    found = []
    for arm in grid():
        if (arm.hint == 0 and arm.replay == 0) or arm.name.endswith(NOTHING_HELD):
            continue
        differences = []
        for seed in range(SEEDS):
            mine = by_key.get((arm.name, arm.rate, seed))
            without = by_key.get(("grpo", arm.rate, seed)) if arm.rollouts == "grpo" else mine
            if mine is not None and without is not None:
                base = without["pass_at_1"] if arm.rollouts == "grpo" else mine["pass_at_1_before"]
                differences.append(mine["pass_at_1"] - base)
        interval = Interval.of(differences) if differences else Interval(0.0, 0.0)
        if interval.mean + interval.half < 0:
            found.append(f"{arm.name} at {arm.rate:g}: {interval.mean:+.3f} ± {interval.half:.3f}")
    return found


def fallen(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the runs with pairs whose chosen answers ended less likely than they began."""
    return [
        f"{run['arm']['name']} at {run['arm']['rate']:g}, seed {run['seed']}"
        for run in runs
        if run["arm"]["replay"] > 0 and run["chosen"]["after"] < run["chosen"]["before"]
    ]


def behind(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the default settings that are below the best of their grid, beyond the interval of the difference."""
    defaults = {"replay alone: sft": "replay alone: ", "grpo + hint 1 + replay 1": "grpo + "}
    by_key = {(run["arm"]["name"], run["arm"]["rate"], run["seed"]): run["pass_at_1"] for run in runs}
    found = []
    for name, family in defaults.items():
        rates = {rate for known, rate, _ in by_key if known == name}
        mine = max(((name, rate) for rate in rates), key=lambda key: _mean(by_key, key), default=None)
        others = {(known, rate) for known, rate, _ in by_key if known.startswith(family) and not known.endswith(_SPOILT)}
        if mine is None:
            continue
        best = max(others, key=lambda key: _mean(by_key, key))
        seeds = [seed for seed in range(SEEDS) if (*mine, seed) in by_key and (*best, seed) in by_key]
        gap = Interval.of([by_key[(*mine, seed)] - by_key[(*best, seed)] for seed in seeds])
        if best != mine and gap.mean + gap.half < 0:
            found.append(f"{name} at {mine[1]:g} is {gap.mean:+.3f} ± {gap.half:.3f} from {best[0]} at {best[1]:g}")
    return found


def _mean(by_key: Mapping[tuple[str, float, int], float], key: tuple[str, float]) -> float:
    return statistics.fmean(value for (name, rate, _), value in by_key.items() if (name, rate) == key)
