"""Which held-out calls are evidence: trivial bodies of every kind, and functions that work."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from composer_replication.languages.calls.call import FunctionCall, HeldOutCall
from composer_replication.languages.calls.evidence import choose_evidence, form_of, places_of, worst_body
from composer_replication.languages.calls.values import differs

WORDS = [
    "apple",
    "banana",
    "cherry",
    "damson",
    "elder",
    "fig",
    "grape",
    "hazel",
    "iris",
    "juniper",
    "kiwi",
    "lemon",
    "mango",
    "nut",
    "olive",
]


def text(value: str) -> dict[str, Any]:
    return {"k": "string", "t": "string", "v": value}


def number(value: int) -> dict[str, Any]:
    return {"k": "int", "t": "int", "v": str(value)}


def struct(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"k": "struct", "t": "T", "e": [[name, value] for name, value in fields.items()]}


def held(
    given: Sequence[dict[str, Any]],
    results: Sequence[dict[str, Any]],
    *,
    zeros: Sequence[dict[str, Any]] | None = None,
    after: Sequence[dict[str, Any]] | None = None,
    near: Sequence[dict[str, Any]] | None = None,
) -> HeldOutCall:
    call = FunctionCall(key="m.go::f", how={}, given=tuple(given))
    nothing = [{"k": "nil"} for _ in results]
    answer = {"r": list(results), "a": list(after or given), "b": list(given), "z": list(zeros or nothing)}
    other = [text("unlike any") for _ in results]
    return HeldOutCall(call=call, answer=answer, near={"r": list(near or other), "a": [{"k": "nil"} for _ in given]})


def why(calls: Sequence[HeldOutCall]) -> str:
    return choose_evidence(calls, random.Random(0))[1]


def test_a_function_that_works_is_evidence() -> None:
    chosen, weakness = choose_evidence([held([text(word)], [text(word.upper() + "!")]) for word in WORDS], random.Random(0))
    assert weakness == ""
    assert len(chosen) == 10


@pytest.mark.parametrize(
    ("calls", "weakness"),
    [
        ([held([text(word)], [text(word)]) for word in WORDS], "a trivial body (argument 0)"),
        ([held([struct(n=text(word), l=number(1))], [text(word)]) for word in WORDS], "a trivial body (part 0 of argument 0)"),
        ([held([text(word)], [number(len(word))]) for word in WORDS], "a trivial body (the bytes of argument 0)"),
        ([held([text(word), number(7)], [number(7), text(word)]) for word in WORDS], "a trivial body (argument 1, argument 0)"),
        ([held([text(word)], [text(word), {"k": "error"}]) for word in WORDS], None),
        ([held([text(word)], [text("x")]) for word in WORDS], "its held-out calls have one answer"),
        ([held([text(word)], [text("x" if n % 5 else "y")]) for n, word in enumerate(WORDS)], None),
        ([held([text(word)], [text("z" + word)], near=[text("z" + word)]) for word in WORDS], None),
        ([held([text(word)], [text(word), {"k": "opaque"}]) for word in WORDS], "it gives what cannot be looked at"),
        ([held([text(word)], [{"k": "list", "e": [{"k": "opaque"}]}]) for word in WORDS], "it gives what cannot be looked at"),
        ([held([text(word)], [text(word + "!")]) for word in WORDS[:3]], "too few held-out calls"),
        ([held([text(w)], [text("ab"[n % 2])]) for n, w in enumerate(WORDS[:6])], "too few held-out calls for two answers"),
    ],
)
def test_what_a_trivial_body_answers_is_no_evidence(calls: list[HeldOutCall], weakness: str | None) -> None:
    found = why(calls)
    assert found == weakness if weakness is not None else found.startswith("a trivial body (")


def test_an_argument_that_is_sometimes_nil_keeps_its_place() -> None:
    calls = [held([{"k": "nil"} if n % 2 else text("list"), text(word)], [text(word)]) for n, word in enumerate(WORDS)]
    assert why(calls) == "a trivial body (argument 1)"


def test_what_changes_its_argument_as_told_is_no_evidence() -> None:
    calls = [
        held(
            [struct(total=number(n), log=number(n)), number(5 * n)],
            [],
            after=[struct(total=number(5 * n), log=number(n)), number(5 * n)],
        )
        for n in range(1, 12)
    ]
    assert [(place.part, place.index, place.field) for place in places_of(calls)] == [("a", 0, "total")]
    assert why(calls) == "a trivial body (argument 1)"


def test_what_works_on_its_argument_is_evidence() -> None:
    calls = [
        held([struct(total=number(n)), number(5 * n)], [], after=[struct(total=number(7 * n + 1)), number(5 * n)])
        for n in range(1, 12)
    ]
    assert why(calls) == ""


def test_the_worst_combination_is_found_among_many() -> None:
    ways = [{f"way {n}": 1 << n for n in range(40)} | {"all but one": (1 << 40) - 2} for _ in range(4)]
    assert worst_body(ways, 40) == ("all but one, all but one, all but one, all but one", 39)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (text("ab"), {"k": "list", "e": [{"k": "uint", "t": "uint8", "v": "97"}, {"k": "uint", "t": "uint8", "v": "98"}]}),
        (number(3), {"k": "float", "t": "float64", "v": "3.0"}),
        ({"k": "nil"}, text("")),
        ({"k": "interface", "e": number(3)}, number(3)),
    ],
)
def test_conversions_are_trivial(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert form_of(one) == form_of(other)


def test_large_numbers_stay_apart() -> None:
    assert form_of(number(2**62)) != form_of(number(2**62 + 1))


@pytest.mark.parametrize("found", [10**400, -(10**400), "1" * 5000, [1], {"k": "float"}, True, None])
def test_an_answer_of_any_shape_is_compared(found: Any) -> None:
    expected = {"k": "float", "t": "number", "v": "7"}
    assert differs(expected, {**expected, "v": found})
    assert differs(expected, found)
    assert differs({"k": "list", "t": "Array", "e": [expected]}, {"k": "list", "t": "Array", "e": found})
