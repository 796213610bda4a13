"""Variations of recorded programs: near to what tests do, new, and drawn where they lead to a function."""

from __future__ import annotations

import json
import random

import pytest

from composer_replication.languages.python.inputs import changed, shape_of
from composer_replication.sandbox.grading.programs import Steps
from composer_replication.tasks.held_out.variations import Variations

Call = tuple[int, dict[str, object]]


def call(number: int, name: str, *args: object) -> Call:
    return number, {"do": "call", "of": ["named", f"m:{name}"], "args": list(args)}


PROGRAM: Steps = [
    call(0, "Version", "3.4.5-rc.1"),
    call(1, "unrelated", 7, 8, 9),
    (2, {"do": "method", "of": ["step", 0], "name": "bump", "args": []}),
    call(3, "compare", ["step", 0], "1.0.0"),
]


@pytest.mark.parametrize(("text", "shape"), [("3.4.5-rc.1", "0.0.0-a.0"), ("Red, white", "a, a"), ("", ""), ("--", "--")])
def test_a_shape_has_one_sign_for_each_number_and_word(text: str, shape: str) -> None:
    assert shape_of(text) == shape


def test_half_of_the_changed_texts_keep_their_shape() -> None:
    rng = random.Random(0)
    texts = [changed("3.4.5-rc.1", "3.4.5-rc.1", rng) for _ in range(400)]
    kept = [text for text in texts if shape_of(text) == "0.0.0-a.0" and text != "3.4.5-rc.1"]
    assert 150 < len(kept) < 250
    assert {text.partition("-")[0] != "3.4.5" for text in kept} == {True, False}, "numbers and words"
    zeros = {changed("007", "007", rng) for _ in range(200)}
    assert {text for text in zeros if text.isdigit() and len(text) == 3} >= {"008", "016"}, "as wide as it was"


def test_towards_a_step_only_what_it_needs_is_changed() -> None:
    drawn = Variations([PROGRAM], random.Random(0)).draw_towards(0, frozenset({2}), 40)
    assert len(drawn) > 20
    for number, steps in drawn:
        assert number == 0
        by_number = dict(steps)
        assert by_number[2] == PROGRAM[2][1]
        assert by_number[0] != PROGRAM[0][1]
        assert by_number.get(1, PROGRAM[1][1]) == PROGRAM[1][1]
        assert by_number.get(3, PROGRAM[3][1]) == PROGRAM[3][1]


def test_texts_are_taken_from_anywhere_where_one_has_the_same_shape() -> None:
    programs: list[Steps] = [[call(0, "bump", "3.4.5")], [call(0, "compare", "9.9.9", "x")], [call(0, "name", "of a thing")]]
    drawn = Variations(programs, random.Random(0)).draw_towards(0, frozenset({0}), 60)
    given = {step["args"][0] for _, steps in drawn for _, step in steps}
    assert "9.9.9" in given
    assert "of a thing" not in given


def test_no_variation_is_a_program_or_drawn_twice() -> None:
    variations = Variations([PROGRAM, [call(0, "f", True)]], random.Random(0))
    drawn = [*variations.draw([50, 5]), *variations.draw_towards(0, frozenset({3}), 50)]
    written = [json.dumps(steps) for _, steps in drawn]
    assert len(set(written)) == len(written) > 50
    assert json.dumps(PROGRAM) not in written
