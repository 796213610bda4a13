"""Values made once and kept for a while."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from composer_replication.envs import TestCache
from composer_replication.sandbox import Ending
from composer_replication.sandbox.grading.grade import GradeCache
from composer_replication.sandbox.grading.pytest_run import TestRun
from composer_replication.sandbox.single_flight import SingleFlightCache
from composer_replication.types import GradeReport


def test_the_value_asked_for_longest_ago_is_forgotten():
    once: SingleFlightCache[str, str] = SingleFlightCache(2)
    for key in "abacb":
        once.get_or_make(key, lambda key=key: (key, True))
    assert [once.get_or_make(key, lambda: ("new", False)) for key in "cba"] == [("c", True), ("b", True), ("new", False)]
    assert len(once) == 2


def test_of_equal_questions_at_once_one_is_answered():
    once: SingleFlightCache[str, int] = SingleFlightCache(8)
    asked, together = [], threading.Barrier(6)

    def ask(_number: int) -> tuple[int, bool]:
        together.wait()
        return once.get_or_make("key", lambda: (asked.append(1) or len(asked), True))

    with ThreadPoolExecutor(6) as pool:
        answers = sorted(pool.map(ask, range(6)))
    assert answers == [(1, False)] + [(1, True)] * 5


def test_who_fails_is_followed_by_the_next():
    once: SingleFlightCache[str, int] = SingleFlightCache(8)
    with pytest.raises(ZeroDivisionError):
        once.get_or_make("key", lambda: (1 // 0, True))
    assert once.get_or_make("key", lambda: (1, False)) == (1, False)
    assert once.get_or_make("key", lambda: (2, True)) == (2, False)
    assert once.get_or_make("key", lambda: (3, True)) == (2, True)


def test_the_caches_of_a_long_run_do_not_grow(tmp_path):
    grades, tests = GradeCache(tmp_path / "grades.jsonl", most=3), TestCache(most=3)
    runs = []
    for number in range(9):
        grades.get_or_grade(str(number), lambda: GradeReport(reward=1.0, outcomes={}, reasons=(), isolation=""))
        for _ in range(2):
            tests.get_or_run(("task", str(number)), lambda: runs.append(1) or TestRun(outcomes={}, ending=Ending.EXITED))
    tests.get_or_run(("task", "0"), lambda: runs.append(1) or TestRun(outcomes={}, ending=Ending.EXITED))
    assert len(grades) == len(GradeCache(tmp_path / "grades.jsonl", most=3)) == 3
    assert len(runs) == 10
