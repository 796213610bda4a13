"""Candidates: what tests run, alone or with helpers and siblings, in an order that a seed fixes."""

from __future__ import annotations

from composer_replication.sandbox.pytest_run import CoverageByTest
from composer_replication.tasks.describe import describe
from composer_replication.tasks.functions import Function, find_functions
from composer_replication.tasks.select import choose_candidates, covering_tests

SOURCE = b"""\
def feature(x):
    y = helper(x)
    return y


def helper(x):
    return -x


def bystander(x):
    return x


class Basket:
    def total(self):
        return sum(self.items)

    def count(self):
        return len(self.items)


def uncovered(x):
    return 0
"""
FUNCTIONS, _ = find_functions("m.py", SOURCE)
BY_NAME = {function.qualname: function for function in FUNCTIONS}
PASSING = {"a", "b", "c", "d", "e"}


def ids(*names: str) -> frozenset[str]:
    return frozenset(names)


COVERAGE: CoverageByTest = {
    "m.py": {
        2: ids("a", "b", "failing"),
        3: ids("a"),
        7: ids("a"),
        11: ids("c"),
        16: ids("d", "e"),
        19: ids("d"),
    }
}


def names(functions: tuple[Function, ...]) -> list[str]:
    return [function.qualname for function in functions]


def test_covering_tests_are_the_passing_ones_that_run_the_body() -> None:
    assert covering_tests(BY_NAME["feature"], COVERAGE, PASSING) == {"a", "b"}
    assert covering_tests(BY_NAME["uncovered"], COVERAGE, PASSING) == frozenset()


def test_single_functions() -> None:
    candidates, skipped = choose_candidates(FUNCTIONS, COVERAGE, PASSING)
    assert sorted(names(c.functions)[0] for c in candidates) == ["Basket.count", "Basket.total", "bystander", "feature", "helper"]
    assert all(len(c.functions) == 1 for c in candidates)
    assert [(s.what, s.reason) for s in skipped] == [("m.py::uncovered", "no passing test runs its body")]
    assert {names(c.functions)[0]: c.tests for c in candidates}["feature"] == {"a", "b"}


def test_groups_join_helpers_and_siblings_once() -> None:
    candidates, _ = choose_candidates(FUNCTIONS, COVERAGE, PASSING, group_size=3)
    groups = sorted(sorted(names(c.functions)) for c in candidates if len(c.functions) > 1)
    assert groups == [["Basket.count", "Basket.total"], ["feature", "helper"]]
    assert len({c.key for c in candidates}) == len(candidates) == 7
    pair = next(c for c in candidates if c.functions[0].qualname == "feature" and len(c.functions) == 2)
    assert pair.tests == {"a", "b"}


def test_sizes_alternate_and_the_seed_fixes_the_order() -> None:
    first, _ = choose_candidates(FUNCTIONS, COVERAGE, PASSING, group_size=2, seed=1)
    again, _ = choose_candidates(list(FUNCTIONS), COVERAGE, set(PASSING), group_size=2, seed=1)
    orders = {tuple(c.key for c in choose_candidates(FUNCTIONS, COVERAGE, PASSING, group_size=2, seed=s)[0]) for s in range(8)}
    assert first == again
    assert len(orders) > 1
    assert [len(c.functions) for c in first] == [1, 2, 1, 2, 1, 1, 1]


def test_instructions_are_short_and_name_every_function() -> None:
    one = describe([BY_NAME["Basket.total"]])
    assert one == "Implement `Basket.total` in m.py: its body was removed. Make its tests pass."
    two = describe([BY_NAME["helper"], BY_NAME["feature"]])
    assert two == "Implement `feature`, `helper` in m.py: their bodies were removed. Make their tests pass."
