from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.policy_gradient import group_advantages, has_signal, soft_overlong_punishment

REWARDS = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.25, 1.0, -3.0])), min_size=0, max_size=8)


def test_grpo_uses_the_sample_standard_deviation_and_trl_epsilon():
    rewards = [1.0, 0.0, 0.0, 0.5]
    std = statistics.stdev(rewards)  # divisor n - 1
    assert group_advantages(rewards, "grpo") == pytest.approx([(r - 0.375) / (std + 1e-4) for r in rewards], rel=1e-12)


def test_dr_grpo_only_subtracts_the_mean():
    assert group_advantages([1.0, 0.0, 0.0, 1.0], "dr_grpo") == [0.5, -0.5, -0.5, 0.5]


def test_rloo_baseline_is_the_mean_of_the_others():
    rewards = [1.0, 0.0, 0.5]
    assert group_advantages(rewards, "rloo") == pytest.approx([1.0 - 0.25, 0.0 - 0.75, 0.5 - 0.5])


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo"])
def test_unscored_siblings_leave_the_baseline(kind):
    with_gap = group_advantages([1.0, None, 0.0, None, 0.0], kind)
    assert with_gap[1] is None
    assert with_gap[3] is None
    assert [a for a in with_gap if a is not None] == group_advantages([1.0, 0.0, 0.0], kind)


@given(REWARDS, st.sampled_from(["grpo", "dr_grpo", "rloo"]), st.floats(-5, 5))
def test_advantages_sum_to_zero_and_ignore_a_constant(rewards, kind, shift):
    advantages = group_advantages(rewards, kind)
    known = [a for a in advantages if a is not None]
    assert len(advantages) == len(rewards)
    assert sum(known) == pytest.approx(0.0, abs=1e-9)
    shifted = group_advantages([None if r is None else r + shift for r in rewards], kind)
    assert [a for a in shifted if a is not None] == pytest.approx(known, abs=1e-6)
    assert any(abs(a) > 1e-9 for a in known) == has_signal(rewards)


def test_the_scale_may_come_from_other_values_of_the_siblings():
    penalised, verdicts = [0.9, 0.8, -0.1, None, 0.0], [1.0, 1.0, 0.0, None, 0.0]
    s, mean = math.sqrt(1 / 3), 0.4
    expected = [None if r is None else (r - mean) / (s + 1e-4) for r in penalised]
    assert group_advantages(penalised, "grpo", scaled_by=verdicts) == pytest.approx(expected)
    agreed = group_advantages([-0.001, -0.003], "grpo", scaled_by=[0.0, 0.0])
    assert agreed == pytest.approx([0.001, -0.001])


def test_no_baseline_no_advantage():
    assert group_advantages([None, 1.0], "grpo") == [None, 0.0]
    assert group_advantages([], "rloo") == []
    assert group_advantages([1.0, 1.0, 1.0], "grpo") == [0.0, 0.0, 0.0]


def test_has_signal():
    assert has_signal([0.0, None, 1.0])
    assert not has_signal([1.0, None, 1.0])
    assert not has_signal([None, None])
    assert not has_signal([1.0])


def test_bad_input_raises():
    with pytest.raises(ValueError, match="unknown advantage kind"):
        group_advantages([1.0, 0.0], "ppo")
    with pytest.raises(ValueError, match="finite"):
        group_advantages([1.0, float("nan")], "grpo")


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (101, -1.0), (10_000, -1.0)]
)
def test_soft_overlong_punishment(length, expected):
    assert soft_overlong_punishment(length, max_length=100, cache=20) == pytest.approx(expected)


def test_soft_overlong_punishment_needs_a_sane_cache():
    with pytest.raises(ValueError, match="cache"):
        soft_overlong_punishment(5, max_length=10, cache=0)
