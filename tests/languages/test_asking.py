"""Nothing that code under test writes down or answers in the place of a recorder ends a build or a grading."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.languages.calls.asking import answers_of, judged_calls, recorded_values
from composer_replication.languages.calls.call import is_inside
from composer_replication.languages.calls.values import is_made_of
from composer_replication.languages.java.values import is_value
from composer_replication.sandbox.protocol import Ending

TWO = {"k": "int", "t": "Integer", "v": "2"}
GOOD = {"r": [TWO], "a": []}
ODD: list[Any] = [None, 3, "x", [], {}, [[]], [3, 4], [["call"]], {"k": []}, [None] * 9]


def test_calls_are_taken_of_known_functions_that_were_not_called_too_often() -> None:
    lines = [
        *(
            [],
            None,
            3,
            "call",
            ["call"],
            ["call", 3, [TWO]],
            ["call", "a", TWO],
            ["call", "a", []],
            ["call", "a", [{"k": "int"}]],
        ),
        *(["call", "a", [TWO]], ["call", "unknown", [TWO]], ["call", "b", [TWO]], ["full", "b"], ["call", ["a"], [TWO]]),
    ]
    assert list(recorded_values(lines, {"a", "b"}, is_value)) == [("a", [TWO])]


@pytest.mark.parametrize("value", [*ODD, {"k": "int", "t": "Integer"}, {"k": ["int"], "t": "Integer", "v": "1"}])
def test_what_is_no_value_is_no_value(value: Any) -> None:
    assert not is_value(value)


def test_a_value_nested_without_end_is_none() -> None:
    deep: Any = TWO
    for _ in range(5000):
        deep = {"k": "list", "t": "ArrayList", "e": [deep]}
    assert not is_made_of(deep, lambda node: True)


def test_answers_belong_to_their_groups() -> None:
    found = [[[GOOD, None], "first"], [[{**GOOD, "p": "it panicked"}, GOOD], "second"], [[], ""]]
    assert answers_of(found, [[0, 3], [1, 2], [4]], 5) == ([GOOD, None, GOOD, None, None], "first")


@pytest.mark.parametrize("found", [*ODD, [[[GOOD], "", 3]], [[GOOD, ""]], [[[GOOD] * 9, ""]]])
def test_answers_of_another_shape_are_none_or_those_that_were_asked_for(found: Any) -> None:
    answers, _ = answers_of(found, [[0]], 1)
    assert answers == ([GOOD] if found == [[[GOOD] * 9, ""]] else [None])


@pytest.mark.parametrize("path", ["", "/etc/x", "../x", "a/../../x", "a\nb", "a\0b", 3, None, ["a"]])
def test_a_path_that_leaves_the_tree_is_none_of_it(path: object) -> None:
    assert not is_inside(path)
    assert is_inside("a/b.c")
    assert is_inside(".")


def test_nothing_is_asked_where_there_are_no_programs() -> None:
    def ask(_: object) -> Any:
        raise AssertionError("a sandbox would have been started")

    assert judged_calls([], lambda _: True, ask) == ([], Ending.EXITED)
