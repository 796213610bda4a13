"""Which functions want more programs, and from which programs these are made."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.tasks.held_out.book import ObservedProgram, _aims, _poor
from composer_replication.tasks.held_out.slices import RecordedProgram

KEY = "shop.py::price"


def observed(*answers: str | None) -> ObservedProgram:
    """A program whose new calls of the function return these."""
    new_calls = {KEY: answers} if answers else {}
    return ObservedProgram(
        steps=[], expected=[], entered=frozenset({KEY}), called=frozenset({KEY}), lines={}, cpu_s=0.0, new_calls=new_calls
    )


def test_a_function_that_answers_unknown_calls_often_and_variously_wants_no_more() -> None:
    assert _poor([observed("1"), observed("1"), observed("2"), observed("3"), observed("4")]) == {}


@pytest.mark.parametrize(
    ("programs", "common"),
    [
        ([observed("1"), observed("2"), observed("3"), observed("4")], "1"),  # few programs
        ([observed("1")] * 4 + [observed("2"), observed("2")], "1"),  # few other answers
        ([observed()], None),  # no new call at all
    ],
)
def test_a_function_of_few_new_calls_or_few_answers_wants_more(programs: list[ObservedProgram], common: str | None) -> None:
    assert _poor([None, *programs]) == {KEY: common}


def test_a_function_that_only_returns_none_wants_no_other_answer() -> None:
    assert _poor([observed("None")] * 6) == {}
    assert _poor([observed(None)] * 6) == {}


def test_of_answers_that_are_equally_frequent_the_first_counts_as_the_usual_one() -> None:
    """Were they put in a set, the book would depend on the hashes of the process: one of forty is the first by chance alone."""
    assert _poor([observed(*(str(number) for number in range(40)))]) == {KEY: "0"}


def recorded(length: int) -> RecordedProgram:
    return RecordedProgram(steps=[(number, {"do": "literal"}) for number in range(length)], test="test_shop.py::test")


def seen(*answers: str, key: str = KEY) -> dict[str, Any]:
    """What a program runs: the function at its first step."""
    return {"steps": {key: [0]}, "calls": {key: [(number, answer) for number, answer in enumerate(answers)]}}


def test_programs_come_from_those_that_answer_unusually_then_from_short_ones_and_some_of_the_rest() -> None:
    taken = [recorded(length) for length in (9, 1, 2, 3, 4, 5, 6, 7)]
    found: list[dict[str, Any] | None] = [seen("2"), *(seen("1") for _ in range(6)), seen("1", key="shop.py::other")]
    aims = _aims(KEY, "1", taken, found, telling=set(range(8)))
    assert [number for number, _ in aims] == [0, 1, 2, 4]
    assert all(leading == {0} for _, leading in aims)


def test_programs_that_tell_nothing_serve_where_there_are_no_others() -> None:
    taken, found = [recorded(1), recorded(2)], [seen("1"), seen("1")]
    assert [number for number, _ in _aims(KEY, None, taken, found, telling={1})] == [1]
    assert [number for number, _ in _aims(KEY, None, taken, found, telling=set())] == [0, 1]


def test_programs_that_could_not_be_looked_at_are_no_aims() -> None:
    assert _aims(KEY, None, [recorded(1)], [None], telling=set()) == []
