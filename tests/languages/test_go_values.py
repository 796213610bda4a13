"""Values of Go calls: written as source, varied, compared."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from composer_replication.languages.calls.book import canonical
from composer_replication.languages.calls.call import FunctionCall
from composer_replication.languages.calls.values import differs, nodes_of
from composer_replication.languages.calls.variation import varied
from composer_replication.languages.go.calls import names_types
from composer_replication.languages.go.values import as_source, is_value


def text(value: str) -> dict[str, Any]:
    return {"k": "string", "t": "string", "v": value}


def number(value: int, kind: str = "int") -> dict[str, Any]:
    return {"k": "int", "t": kind, "v": str(value)}


PLAIN = {"k": "struct", "t": "Entry", "e": [["Name", text("a")], ["Amount", number(3)]]}


@pytest.mark.parametrize(
    ("value", "source"),
    [
        ({"k": "nil"}, "nil"),
        (number(-3, "int8"), "int8(-3)"),
        ({"k": "bool", "t": "Flag", "v": "true"}, "Flag(true)"),
        ({"k": "float", "t": "float32", "v": "1e+20"}, "float32(1e+20)"),
        (text('say "hi"\n\x00\u2028é'), 'string("say \\"hi\\"\\n\\u0000\u2028é")'),
        ({"k": "list", "t": "[]string", "e": [text("a"), text("b")]}, '[]string{string("a"), string("b")}'),
        ({"k": "map", "t": "map[string]int", "e": [[text("a"), number(1)]]}, 'map[string]int{string("a"): int(1)}'),
        (PLAIN, 'Entry{Name: string("a"), Amount: int(3)}'),
        ({"k": "pointer", "e": PLAIN}, '&Entry{Name: string("a"), Amount: int(3)}'),
        ({"k": "pointer", "e": number(1)}, "func() *int { v := int(1); return &v }()"),
        ({"k": "interface", "e": number(1)}, "int(1)"),
    ],
)
def test_a_value_is_written_as_go(value: dict[str, Any], source: str) -> None:
    assert as_source(value) == source
    assert is_value(value)


@pytest.mark.parametrize(
    "value",
    [
        {"k": "int", "t": "int", "v": "1); panic(0"},
        {"k": "int", "t": "int(0)+f()", "v": "1"},
        {"k": "bool", "t": "bool", "v": "f()"},
        {"k": "struct", "t": "Entry", "e": [["Name: f(), Amount", number(1)]]},
        {"k": "float", "t": "float64", "v": "f()"},
        {"k": "string", "t": "string"},
        {"k": "call", "t": "int", "v": "f()"},
        {"k": "list", "t": "[]int", "e": 3},
        "text",
        None,
    ],
)
def test_what_is_no_value_is_not_written(value: Any) -> None:
    assert not is_value(value)


def test_variations_are_values_of_the_same_types() -> None:
    given = [PLAIN, {"k": "list", "t": "[]int", "e": [number(1), number(2)]}, {"k": "uint", "t": "uint8", "v": "250"}]
    seen = set()
    for seed in range(300):
        found = varied(given, [given], random.Random(seed))
        assert all(map(is_value, found))
        assert [one["k"] for one in found] == ["struct", "list", "uint"]
        assert all(0 <= int(node["v"]) < 256 for node in nodes_of(found[2]))
        seen.add(json.dumps(found))
    assert len(seen) > 40
    assert given[0] is PLAIN
    assert PLAIN["e"][1][1]["v"] == "3"


@pytest.mark.parametrize(
    ("expected", "found", "other"),
    [
        ({"k": "float", "v": "0.3"}, {"k": "float", "v": "0.30000000000000004"}, False),
        ({"k": "float", "v": "0.3"}, {"k": "float", "v": "0.31"}, True),
        ({"k": "nil"}, {"k": "list", "e": []}, False),
        ({"k": "nil"}, {"k": "error"}, True),
        ({"k": "list", "e": [number(1)]}, {"k": "list", "e": [number(1), number(1)]}, True),
        ({"k": "struct", "t": "A", "e": [["x", number(1)]]}, {"k": "struct", "t": "A", "e": [["x", number(2)]]}, True),
        ({"k": "struct", "t": "A", "e": []}, {"k": "struct", "t": "B", "e": []}, True),
        (
            {"k": "struct", "t": "A", "e": [["x", number(1)]]},
            {"k": "struct", "t": "A", "e": [["y", number(2)], ["x", number(1)]]},
            False,
        ),
        ({"k": "struct", "t": "A", "e": [["x", number(1)]]}, {"k": "struct", "t": "A", "e": [["y", number(1)]]}, True),
        ({"k": "struct", "t": "A", "e": [["x", number(1)]]}, {"k": "struct", "t": "A", "e": 3}, True),
        ({"k": "int", "t": "int8", "v": "1"}, {"k": "int", "t": "int64", "v": "1"}, True),
        ({"k": "float", "v": "0"}, {"k": "float", "v": "5.55e-17"}, False),
        ({"k": "map", "e": [[number(1), number(2)]]}, {"k": "map", "e": [[number(1), number(2)]]}, False),
        ({"k": "error"}, None, True),
    ],
)
def test_answers_are_compared(expected: Any, found: Any, other: bool) -> None:
    assert differs(expected, found) is other


def test_types_of_a_call_are_named() -> None:
    assert names_types(FunctionCall(key="k", how={}, given=(PLAIN, number(1)))) == {"Entry", "string", "int"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"k": "float", "t": "float64", "v": "3"}, {"k": "float", "t": "float64", "v": "3.0"}),
        (
            {"k": "struct", "t": "A", "e": [["x", number(0)], ["y", number(1)]]},
            {"k": "struct", "t": "A", "e": [["y", number(1)]]},
        ),
        ({"k": "nil"}, {"k": "list", "t": "[]int", "e": []}),
    ],
)
def test_equal_values_are_one_call_however_they_are_written(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical([one]) == canonical([other])
    assert canonical([one]) != canonical([text("x")])
