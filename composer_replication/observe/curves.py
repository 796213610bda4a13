"""Metrics as charts: which family a metric belongs to, its unit, and its points in a bounded number.

A family with the kind `lines` has one chart per metric and one line per arm, with error bars where `X_se` accompanies `X`.
A family with the kind `stack` has one chart per arm, in which its metrics are shares of a whole.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from composer_replication.observe.run_dir import MetricsLine

MAX_POINTS = 400
"""Points of one line; a longer one is thinned evenly, its first and last point kept."""

_FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("Reward", r"reward(/.*)?", "lines"),
    ("Held-out evaluation", r"eval/.*", "lines"),
    ("Loss of each channel", r"(rlvr|hint|replay|train)/loss|loss(/.*)?", "lines"),
    ("Gradient of each channel", r"(rlvr|hint|replay)/(pull|gradient/.*)", "lines"),
    ("Stop reasons", r"stop/.*", "stack"),
    ("Optimizer", r"(train|optim|optimizer)/.*|(grad_norm|lr)(/.*)?", "lines"),
    ("Policy gradient (rlvr)", r"rlvr/.*", "lines"),
    ("Hints", r"hint/.*", "lines"),
    ("Teacher replay", r"replay/.*", "lines"),
    ("Rollouts", r"(rollout|tokens|env|turns)/.*", "lines"),
    ("Grading", r"(grade|cache|sandbox)/.*", "lines"),
    ("Trainer and sampler mismatch", r"mismatch/.*", "lines"),
    ("Time", r"time/.*", "lines"),
    ("Cost", r"cost/.*", "lines"),
)

_UNITS: tuple[tuple[str, str], ...] = (
    (r"(.*/)?(lr|learning_rate)", "learning rate"),
    (r"cost/cpu_s", "CPU-seconds"),
    (r".*_s|time/.*", "seconds"),
    (r".*usd(/.*)?", "US dollars"),
    (r".*(pass_at_|frac_|_frac|accuracy|rate|share|_cached)[^/]*(/.*)?", "share (0 to 1)"),
    (r"reward/unscored.*", "trajectories"),
    (r"reward(/.*)?", "reward"),
    (r".*(entropy|jsd|kl|k3|logprob|margin)[^/]*(/.*)?", "nats"),
    (r".*(grad_norm|/pull|/gradient/norm)", "L2 norm"),
    (r".*/cosine", "cosine"),
    (r".*ratio(/.*)?", "probability ratio"),
    (r"(.*/)?loss(/.*)?", "loss"),
    (r".*tokens[^/]*(/.*)?", "tokens"),
    (r".*(turns|pairs|groups|hits|misses|trajectories|findings|hints|dropped|unscored)[^/]*", "count"),
)

_SE = "_se"
_HEADLINES = ("/mean", "/pass_at_1", "rlvr/loss")
"""Ends of the metrics that come first in their family."""


def unit(metric: str) -> str:
    """Return the label of the vertical axis of a metric's chart."""
    return next((label for pattern, label in _UNITS if re.fullmatch(pattern, metric)), "value")


def families(lines: Iterable[MetricsLine], arms: Sequence[str]) -> list[dict[str, Any]]:
    """Return every metric of a run as JSON data for the charts.

    Returns:
        `[{"title", "panels": [panel]}]`. A panel is `{"kind": "lines", "title", "unit", "series": [{"arm", "steps", "values",
        "se"}]}` or `{"kind": "stack", "title", "unit", "steps", "parts": [{"name", "values"}]}`; `arm` is an index into `arms`,
        and both kinds carry `of`, the number of points before thinning. A value that is not finite is a string.
    """
    points: defaultdict[str, defaultdict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        for name, value in line.values.items():
            points[name][line.arm][line.step] = value
    drawn = [name for name in points if not (name.endswith(_SE) and name.removesuffix(_SE) in points)]
    grouped: defaultdict[tuple[int, str, str], list[str]] = defaultdict(list)
    for name in drawn:
        grouped[_family(name)].append(name)
    found = []
    for (_, title, kind), names in sorted(grouped.items()):
        if kind == "stack":
            panels = [_stack(arm, sorted(names), points) for arm in arms if any(arm in points[name] for name in names)]
        else:
            panels = [_lines(name, points, arms) for name in sorted(names, key=lambda n: (not n.endswith(_HEADLINES), n))]
        found.append({"title": title, "panels": panels})
    return found


def _family(name: str) -> tuple[int, str, str]:
    """Return rank, title and kind of a metric's family; an unknown one gets a family named by its prefix, at the end."""
    for rank, (title, pattern, kind) in enumerate(_FAMILIES):
        if re.fullmatch(pattern, name):
            return rank, title, kind
    return len(_FAMILIES), name.split("/")[0], "lines"


def _lines(name: str, points: Mapping[str, Mapping[str, Mapping[int, float]]], arms: Sequence[str]) -> dict[str, Any]:
    series = []
    longest = 0
    for index, arm in enumerate(arms):
        by_step = points[name].get(arm)
        if not by_step:
            continue
        longest = max(longest, len(by_step))
        steps = _thin(sorted(by_step))
        one: dict[str, Any] = {"arm": index, "steps": steps, "values": [_round(by_step[s]) for s in steps]}
        if errors := points.get(name + _SE, {}).get(arm):
            one["se"] = [_round(errors.get(s, math.nan)) for s in steps]
        series.append(one)
    return {"kind": "lines", "title": name, "unit": unit(name), "series": series, "of": longest}


def _stack(arm: str, names: Sequence[str], points: Mapping[str, Mapping[str, Mapping[int, float]]]) -> dict[str, Any]:
    recorded = sorted({step for name in names for step in points[name].get(arm, {})})
    steps = _thin(recorded)
    parts = [
        {"name": name.split("/", 1)[-1], "values": [_round(points[name].get(arm, {}).get(s, 0.0)) for s in steps]}
        for name in names
    ]
    return {"kind": "stack", "title": arm, "unit": "share of trajectories", "steps": steps, "parts": parts, "of": len(recorded)}


def _thin(steps: list[int]) -> list[int]:
    if len(steps) <= MAX_POINTS:
        return steps
    return [steps[round(i * (len(steps) - 1) / (MAX_POINTS - 1))] for i in range(MAX_POINTS)]


def _round(value: float) -> float | str:
    """Round to six significant digits, more than a screen shows; values that are not finite become the strings `nan`, `inf`,
    `-inf`."""
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)
