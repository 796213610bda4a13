"""One score of a trajectory, and the best of several."""

from __future__ import annotations

import pytest

from composer_replication.prm import best_of, trajectory_score


def test_scores():
    assert trajectory_score([0.5, 0.8]) == pytest.approx(0.4)
    assert trajectory_score([0.5, 0.8], "min") == 0.5
    assert trajectory_score([]) == trajectory_score([], "min") == 0.0
    with pytest.raises(ValueError, match="outside"):
        trajectory_score([0.5, 1.2])


def test_the_best_of_each_task():
    scores = {"b": 0.5, "a": 0.5, "c": 0.1, "d": 0.0}
    assert best_of(scores, {"a": "t", "b": "t", "c": "t", "d": "u", "unscored": "t"}) == {"t": "a", "u": "d"}
