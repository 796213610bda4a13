from __future__ import annotations

import math
import random

import pytest
import scipy.stats
from made_trajectories import scored_group

from composer_replication.observe import mean_and_se, pass_at_1, usd
from composer_replication.types import Unscored


def test_standard_error_agrees_with_scipy() -> None:
    values = [0.1, 0.5, 0.25, 0.9]
    mean, se = mean_and_se(values)
    assert mean == pytest.approx(sum(values) / 4)
    assert se == pytest.approx(float(scipy.stats.sem(values)))


def test_what_cannot_be_estimated_is_nan() -> None:
    assert all(math.isnan(v) for v in mean_and_se([]))
    mean, se = mean_and_se([0.5])
    assert mean == 0.5
    assert math.isnan(se)


def test_tasks_count_equally_whatever_their_number_of_rollouts() -> None:
    mean, se = pass_at_1([scored_group("a", 1.0, 1.0, 1.0, 0.0), scored_group("b", 0.0)])
    assert mean == pytest.approx(0.375)
    assert se == pytest.approx(float(scipy.stats.sem([0.75, 0.0])))


def test_unscored_is_neither_zero_nor_one_and_partial_rewards_do_not_pass() -> None:
    groups = [scored_group("a", 1.0, Unscored("box")), scored_group("b", Unscored("box")), scored_group("c", 0.5, 0.0)]
    assert pass_at_1(groups)[0] == pytest.approx(0.5)


def test_groups_of_one_task_are_pooled() -> None:
    assert pass_at_1([scored_group("a", 1.0), scored_group("a", 0.0), scored_group("b", 1.0)]) == pass_at_1(
        [scored_group("a", 1.0, 0.0), scored_group("b", 1.0)]
    )


def test_the_standard_error_covers_the_spread_between_samples_of_tasks() -> None:
    """Tasks here are all-or-nothing: an error computed over rollouts as if they were independent would be 4 times too small."""
    rng = random.Random(0)
    results = [pass_at_1([scored_group(f"t{n}", *[float(rng.random() < 0.5)] * 16) for n in range(40)]) for _ in range(400)]
    means = [mean for mean, _ in results]
    spread = mean_and_se(means)[1] * math.sqrt(len(means))
    typical = sum(se for _, se in results) / len(results)
    assert typical == pytest.approx(spread, rel=0.1)


def test_small_amounts_of_money_are_not_shown_as_nothing():
    shown = {0.0: "0.0000", 12.5: "12.5000", 0.0123: "0.0123", 0.00005: "0.000050", 2.34e-7: "0.00000023", -0.00002: "-0.000020"}
    assert {amount: usd(amount) for amount in shown} == shown
    assert usd(math.inf) == "n/a"
