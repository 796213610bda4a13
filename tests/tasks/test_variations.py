"""Variations of recorded programs: near to what tests do, new, and drawn where they lead to a function."""

from __future__ import annotations

import json
import random
import re

import pytest

from composer_replication.languages.python.inputs import changed, grown, new_word, shape_of, with_word
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
        compared = by_number.get(3, PROGRAM[3][1])["args"]
        assert compared == [["step", 0], "1.0.0"] or renamed(str(by_number[0]["args"]), "3.4.5-rc.1") == "1", "a word of both"


def renamed(new: str, old: str) -> str:
    """Return the one word of `old` that stands in `new` as another, or nothing where other things differ."""
    pairs = set(zip(re.findall("[0-9]+|[a-z]+", old), re.findall("[0-9]+|[a-z]+", new), strict=False))
    others = {mine for mine, theirs in pairs if mine != theirs}
    return others.pop() if len(others) == 1 else ""


def test_a_word_is_renamed_wherever_it_stands() -> None:
    """Values that were equal, keys and parts of texts stay so, and the call is a new one."""
    program: Steps = [
        (0, {"do": "value", "of": ["dict", [["foo", ["list", ["bar", 7]]], ["food", 1]]]}),
        (1, {"do": "method", "of": ["named", "m:Query"], "name": "search", "args": ["foo[7].bar"], "named": {"at": ["step", 0]}}),
        (2, {"do": "operator", "name": "getitem", "args": [["step", 0], "foo"]}),
    ]
    drawn = [json.dumps(steps) for _, steps in Variations([program], random.Random(0)).draw([400])]
    for old in ("foo", "7", "bar"):
        written = {
            new: re.sub(rf"\b{old}\b", new, json.dumps(program)) for text in drawn for new in re.findall("[a-z0-9]+", text)
        }
        found = {new for new, text in written.items() if text in drawn}
        assert len(found - {old}) > 2, (old, found)


def test_what_the_tests_expect_of_a_message_is_not_varied() -> None:
    program: Steps = [
        call(0, "parse", "no such key"),
        (1, {"do": "call", "of": ["named", "re:search"], "args": [r"no such \w+", ["step", 0]]}),
    ]
    drawn = [dict(steps) for _, steps in Variations([program], random.Random(0)).draw([200])]
    assert len(drawn) > 20
    assert {steps[1]["args"][0] for steps in drawn if 1 in steps} == {r"no such \w+"}


def test_a_number_in_a_text_becomes_a_near_one_or_any() -> None:
    rng = random.Random(0)
    found = [int(new_word("7", rng)) for _ in range(400)]
    near = sum(8 <= number <= 16 for number in found)
    assert 220 < near < 360
    assert max(found) > 60
    assert {with_word(value, "7", "31") for value in (7, -7, True, 77, "7-77 a7", "x")} == {31, -31, True, 77, "31-77 a31", "x"}


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


@pytest.mark.parametrize("kind", ["list", "tuple", "set", "frozenset"])
def test_a_longer_value_begins_as_it_did_and_goes_past_what_a_first_look_takes(kind: str) -> None:
    rng = random.Random(0)
    made = [grown([kind, [1, 2, 3]], rng)[1] for _ in range(200)]
    assert {items[:3] == [1, 2, 3] for items in made} == {True}
    lengths = {len(items) for items in made}
    assert {4, 7} <= lengths
    assert 10 < max(lengths) <= 23
    again = [len(set(items)) < len(items) for items in made]
    assert {items[0] == items[-1] for items in made if len(items) > 10} == (
        {True, False} if kind in ("list", "tuple") else {False}
    )
    assert any(again) == (kind in ("list", "tuple")), "an item stands there twice, or never does"


def test_a_longer_dict_has_every_key_once() -> None:
    rng = random.Random(0)
    made = [grown(["dict", [["ab", 1], ["cd", 2]]], rng)[1] for _ in range(100)]
    assert all(len({key for key, _ in pairs}) == len(pairs) for pairs in made)
    assert max(map(len, made)) > 10
    assert [grown(value, rng) for value in (["list", []], "text", 7, ["built", "m:C", [1]])] == [
        ["list", []],
        "text",
        7,
        ["built", "m:C", [1]],
    ]


def test_a_call_that_takes_any_number_of_arguments_is_given_more() -> None:
    """Those that stand in the call, and those that a step before it gives; never to another function."""
    programs: list[Steps] = [
        [(0, {"do": "value", "of": ["list", [1]]}), call(1, "deep.concat", ["step", 0], ["step", 0])],
        [call(0, "concat", "a", "b")],
        [call(0, "other", "a", "b")],
        [call(0, "start"), (1, {"do": "method", "of": ["step", 0], "name": "add", "args": [5]})],
    ]
    drawn = Variations(programs, random.Random(0), {"concat": 0, "add": 0}).draw([100] * 4)
    counts: dict[int, set[int]] = {number: set() for number in range(4)}
    for number, steps in drawn:
        most = max(len(step.get("args", [])) for _, step in steps)
        places = [place for place, _ in steps]
        assert len(set(places)) == len(places), "every step has a number of its own"
        for at, (_, step) in enumerate(steps if most > 2 else ()):
            used = [arg[1] for arg in step.get("args", []) if isinstance(arg, list) and arg[0] == "step"]
            assert set(used) <= set(places[:at]), "made before it is used"
        counts[number].update(len(step["args"]) for _, step in steps if step.get("args"))
    assert counts == {0: {2, 4, 6}, 1: {2, 4, 6}, 2: {2}, 3: {1, 3, 5}}


@pytest.mark.parametrize("text", ["45.01 USD", "2026-01-05", "12:05:09"])
def test_fields_of_one_width_keep_it(text: str) -> None:
    """What a number of another width means there, only the gold code says."""
    rng = random.Random(0)
    made = {changed(text, text, rng) for _ in range(600)} - {text}
    fields = [field for new in made for field in re.findall(r"(?<=[0-9])[.:/-]([0-9]+)", new)]
    assert len(fields) > 40
    assert {len(field) for field in fields} == {2}


def test_fields_of_several_widths_may_have_others() -> None:
    rng = random.Random(0)
    assert any(re.search(r"\.[0-9]{2}", changed("3.4.5", "3.4.5", rng)) for _ in range(200)), "3.4.12"
