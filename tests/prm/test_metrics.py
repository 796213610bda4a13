"""The measures against their definitions."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from composer_replication.prm.metrics import (
    accuracy,
    auroc,
    bootstrap_interval,
    calibration,
    expected_calibration_error,
    log_loss,
    roc,
)

STEPS = st.lists(st.tuples(st.sampled_from([0.0, 0.4, 0.5, 1.0]), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])), max_size=30)


@given(STEPS)
def test_auroc_is_the_share_of_pairs_in_order_and_the_area_under_the_curve(steps):
    labels, scores = [label for label, _ in steps], [score for _, score in steps]
    good = [s for label, s in steps if label >= 0.5]
    bad = [s for label, s in steps if label < 0.5]
    if not good or not bad:
        assert math.isnan(auroc(labels, scores))
        assert roc(labels, scores) == []
        return
    pairs = [1.0 if g > b else 0.5 if g == b else 0.0 for g in good for b in bad]
    assert auroc(labels, scores) == pytest.approx(sum(pairs) / len(pairs))
    points = roc(labels, scores)
    assert (points[0], points[-1]) == ((0.0, 0.0), (1.0, 1.0))
    area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in itertools.pairwise(points))
    assert area == pytest.approx(auroc(labels, scores))


@given(STEPS)
def test_calibration_counts_every_step_once(steps):
    labels, scores = [label for label, _ in steps], [score for _, score in steps]
    bins = calibration(labels, scores)
    assert sum(b.count for b in bins) == len(steps)
    if steps:
        error = expected_calibration_error(labels, scores)
        assert error == pytest.approx(sum(b.count * abs(b.label - b.probability) for b in bins) / len(steps))


def test_values():
    labels, scores = [1.0, 1.0, 0.0, 0.0], [0.9, 0.6, 0.6, 0.1]
    assert auroc(labels, scores) == 0.875
    assert accuracy(labels, scores) == 0.75
    assert log_loss(labels, scores) == pytest.approx(-(math.log(0.9) + math.log(0.6) + math.log(0.4) + math.log(0.9)) / 4)
    assert expected_calibration_error(labels, scores) == pytest.approx((0.1 + 2 * 0.1 + 0.1) / 4)
    assert log_loss([1.0], [0.0]) == pytest.approx(-math.log(1e-12))
    assert all(math.isnan(measure([], [])) for measure in (accuracy, auroc, log_loss, expected_calibration_error))


@given(st.integers(0, 5))
def test_a_constant_is_chance(seed):
    labels = [float((i * 7 + seed) % 3 == 0) for i in range(30)]
    assert auroc(labels, [0.3] * 30) == 0.5


def test_the_interval_draws_whole_groups():
    """Two groups that agree inside: what is drawn is all of one, all of the other, or both."""
    labels, scores, groups = [1.0, 0.0] * 20, [1.0, 0.0] * 10 + [0.0, 1.0] * 10, ["x"] * 20 + ["y"] * 20
    assert bootstrap_interval(labels, scores, groups) == (0.0, 1.0)
    low, high = bootstrap_interval(labels, scores, [str(i // 2) for i in range(40)])
    assert 0.2 < low < 0.5 < high < 0.8


@given(STEPS)
def test_the_interval_holds_what_can_be_drawn(steps):
    labels, scores = [label for label, _ in steps], [score for _, score in steps]
    assume(not math.isnan(auroc(labels, scores)))
    low, high = bootstrap_interval(labels, scores, ["one"] * len(steps), samples=3)
    assert low == high == auroc(labels, scores)


def test_no_interval_without_both_kinds():
    assert all(math.isnan(v) for v in bootstrap_interval([1.0], [0.3], ["a"]))
