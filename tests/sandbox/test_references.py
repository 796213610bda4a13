"""References to steps are told from data that looks like one."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.sandbox.grading.literals import encode_argument
from composer_replication.sandbox.grading.steps.references import modules_of, needs, with_references


@pytest.mark.parametrize("data", [{"step": 9}, ["step", 9], ("step", 9), [["step", 9]], {"a": {"step": 9}}, {("step", 9)}])
def test_data_is_no_reference(data: Any) -> None:
    written = encode_argument(data)
    step = {"do": "call", "of": ["named", "m:f"], "args": [written, ["step", 3]], "named": {"step": 9, "x": ["step", 4]}}
    assert needs(step) == [3, 4]
    moved = with_references(step, lambda number: ["step", number + 10])
    assert moved == {**step, "args": [written, ["step", 13]], "named": {"step": 9, "x": ["step", 14]}}


def test_references_are_found_inside_of_values() -> None:
    held = {"f": ["method", ["step", 1], "close"], "g": ["stand-in", ["shipped", "g", "", {"x": ["step", 2]}]]}
    values = [["list", [["step", 3], 5]], ["dict", [["k", ["step", 4]], [["step", 5], 1]]], ["shipped", "h", "h()", held]]
    assert sorted(needs({"do": "call", "of": ["step", 0], "args": values})) == [0, 1, 2, 3, 4, 5]


def test_modules_are_told_from_data() -> None:
    data = encode_argument({"named": "x", "module": ["module", "y"]})
    assert [*modules_of([(0, {"do": "call", "of": ["named", "a.b:C.f"], "args": [["module", "d"], data]})])] == ["a.b", "d"]
