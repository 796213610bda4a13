"""Tell what the runs of `channels` say: a table, and what does not hold in it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from channel_arms import NOTHING_HELD, SEEDS, Arm, grid

from composer_replication.observe.metrics import t_975

_SPOILT = ("wrong", "long answers", NOTHING_HELD, "times the steps")
"""How the names of arms end that are not of a default run, or took longer than one."""
_FAMILIES = {
    "replay alone: sft": lambda name: name.startswith("replay alone: "),
    "grpo + hint 1": lambda name: name.startswith("grpo + hint ") and "replay" not in name,
    "grpo + hint 1 + replay 3": lambda name: name.startswith("grpo + "),
}
"""Settings that are the defaults, and which arms are in the grid of each."""


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
    """Return the arms with a channel whose pass@1 is below that of a run without it, beyond the interval of the difference: below
    the policy gradient alone, and where there are two channels below each of them without the other. Without rollouts that run is
    the start."""
    by_key = {(run["arm"]["name"], run["arm"]["rate"], run["seed"]): run for run in runs}
    found = []
    for arm in grid():
        if (arm.hint == 0 and arm.replay == 0) or arm.name.endswith(NOTHING_HELD):
            continue
        mine = {seed: run for seed in range(SEEDS) if (run := by_key.get((arm.name, arm.rate, seed)))}
        for name in _without(arm):
            known = mine if name == START else {seed: by_key.get((name, arm.rate, seed)) for seed in mine}
            before = "pass_at_1_before" if name == START else "pass_at_1"
            changes = [mine[seed]["pass_at_1"] - run[before] for seed, run in known.items() if run is not None]
            interval = Interval.of(changes) if changes else Interval(0.0, 0.0)
            if interval.mean + interval.half < 0:
                found.append(f"{arm.name} at {arm.rate:g}: {interval.mean:+.3f} ± {interval.half:.3f} from {name}")
    return found


START = "the start"


def _without(arm: Arm) -> list[str]:
    """Return the names of the arms that lack one of this one's channels, or both."""
    if arm.rollouts != "grpo":
        return [START]
    both = arm.hint > 0 and arm.replay > 0 and not arm.name.endswith(_SPOILT)
    return ["grpo", *([f"grpo + hint {arm.hint:g}", f"grpo + replay {arm.replay:g}"] if both else [])]


def fallen(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the runs with pairs whose chosen answers ended less likely than they began, and not more likely than without the
    pairs: the policy gradient moves them too."""
    return [name for name, held in _lowered(runs) if not held]


def carried_down(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the runs with pairs whose chosen answers the policy gradient made less likely, and the pairs less so."""
    return [name for name, held in _lowered(runs) if held]


def _lowered(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool]]:
    """Return the runs with pairs whose chosen answers ended less likely than they began, and whether they ended more likely than
    those of the same rollouts without pairs."""
    after = {(run["arm"]["name"], run["arm"]["rate"], run["seed"]): run["chosen"]["after"] for run in runs}
    found = []
    for run in runs:
        arm, began, ended = run["arm"], run["chosen"]["before"], run["chosen"]["after"]
        if arm["replay"] > 0 and ended < began:
            name = f"grpo + hint {arm['hint']:g}" if arm["hint"] > 0 else "grpo"
            without = after.get((name, arm["rate"], run["seed"]), began) if arm["rollouts"] == "grpo" else began
            found.append((f"{arm['name']} at {arm['rate']:g}, seed {run['seed']}", ended > without))
    return found


def behind(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the default settings that are below the best of their grid, beyond the interval of the difference."""
    by_key = {(run["arm"]["name"], run["arm"]["rate"], run["seed"]): run["pass_at_1"] for run in runs}
    found = []
    for name, belongs in _FAMILIES.items():
        rates = {rate for known, rate, _ in by_key if known == name}
        mine = max(((name, rate) for rate in rates), key=lambda key: _mean(by_key, key), default=None)
        others = {(known, rate) for known, rate, _ in by_key if belongs(known) and not known.endswith(_SPOILT)}
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
