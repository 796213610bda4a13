from __future__ import annotations

import math
from typing import Any

import pytest

from composer_replication.observe import MetricsLine
from composer_replication.observe.curves import MAX_POINTS, families, unit


def lines(arm: str, *values: dict[str, float], start: int = 0) -> list[MetricsLine]:
    return [MetricsLine(arm=arm, step=start + n, values=v) for n, v in enumerate(values)]


def panels(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {panel["title"]: panel for family in found for panel in family["panels"]}


def test_a_standard_error_belongs_to_its_metric() -> None:
    found = families(lines("a", {"eval/pass_at_1": 0.5, "eval/pass_at_1_se": 0.1}, {"eval/pass_at_1": 0.75}), ["a"])
    assert [family["title"] for family in found] == ["Held-out evaluation"]
    (panel,) = found[0]["panels"]
    assert panel["series"] == [{"arm": 0, "steps": [0, 1], "values": [0.5, 0.75], "se": [0.1, "nan"]}]
    assert panel["unit"] == "share (0 to 1)"


def test_a_lone_se_name_is_a_metric_of_its_own() -> None:
    assert list(panels(families(lines("a", {"odd_se": 1.0}), ["a"]))) == ["odd_se"]


def test_arms_share_a_chart_and_a_step_logged_twice_is_one_point() -> None:
    logged = [*lines("a", {"reward/mean": 0.25}), *lines("b", {"reward/mean": 1.0}, start=3), *lines("a", {"reward/mean": 0.5})]
    series = panels(families(logged, ["a", "b"]))["reward/mean"]["series"]
    assert series == [{"arm": 0, "steps": [0], "values": [0.5]}, {"arm": 1, "steps": [3], "values": [1.0]}]


def test_stop_reasons_are_shares_per_arm_with_absent_ones_zero() -> None:
    logged = [
        *lines("a", {"stop/submitted": 1.0}, {"stop/submitted": 3.0, "stop/max_turns": 1.0}),
        *lines("b", {"stop/submitted": 1.0}),
    ]
    (family,) = families(logged, ["a", "b"])
    assert [panel["title"] for panel in family["panels"]] == ["a", "b"]
    assert family["panels"][0]["parts"] == [
        {"name": "max_turns", "values": [0.0, 1.0]},
        {"name": "submitted", "values": [1.0, 3.0]},
    ]


def test_every_metric_has_a_chart_even_an_unforeseen_one() -> None:
    values = {"reward/mean": 1.0, "rlvr/loss": 1.0, "hint/loss": 1.0, "hint/jsd/mean": 1.0, "novel/thing": 1.0, "plain": 1.0}
    found = families(lines("a", values), ["a"])
    assert set(panels(found)) == set(values)
    assert [family["title"] for family in found] == ["Reward", "Loss of each channel", "Hints", "novel", "plain"]


def test_a_long_curve_is_thinned_to_a_bound_with_both_ends() -> None:
    (family,) = families(lines("a", *({"rlvr/loss": float(n)} for n in range(10_000))), ["a"])
    (series,) = family["panels"][0]["series"]
    assert len(series["steps"]) == MAX_POINTS == len(set(series["steps"]))
    assert (series["steps"][0], series["steps"][-1]) == (0, 9_999)
    assert series["values"] == [float(s) for s in series["steps"]]
    assert family["panels"][0]["of"] == 10_000


def test_values_keep_six_digits_and_not_finite_ones_become_words() -> None:
    (family,) = families(lines("a", {"x/y": 1 / 3}, {"x/y": math.nan}, {"x/y": -math.inf}), ["a"])
    assert family["panels"][0]["series"][0]["values"] == [0.333333, "nan", "-inf"]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("reward/mean", "reward"),
        ("rlvr/frac_zero_std", "share (0 to 1)"),
        ("rlvr/entropy/mean", "nats"),
        ("hint/jsd/mean", "nats"),
        ("hint/loss", "loss"),
        ("train/grad_norm", "L2 norm"),
        ("time/rollout_s", "seconds"),
        ("cost/usd", "US dollars"),
        ("cost/cpu_s", "CPU-seconds"),
        ("rollout/tokens", "tokens"),
        ("replay/pairs", "count"),
        ("train/lr", "learning rate"),
        ("optimizer/learning_rate", "learning rate"),
        ("rlvr/ratio/max", "probability ratio"),
        ("cost/grades_cached", "share (0 to 1)"),
        ("something/else", "value"),
    ],
)
def test_units(metric: str, expected: str) -> None:
    assert unit(metric) == expected
