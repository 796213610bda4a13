"""What tests only pass on to the project is not compared, and what they ask of it is."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.sandbox.grading.steps import passed_on, references
from composer_replication.sandbox.grading.steps.passed_on import PassedOn

vars(passed_on).update(needs=references.needs, with_references=references.with_references)  # in a sandbox they share a namespace


class Project:
    """An object of the project's."""


class Run:
    """Steps as a recorder writes them: `dumps` gives a text, other steps are made of references to it."""

    def __init__(self) -> None:
        self.passed_on = PassedOn()
        self.steps: list[dict[str, Any]] = []
        self.facts: list[tuple[str, bool, str]] = []
        self.project = Project()

    def step(self, do: str, operands: tuple[Any, ...], result: Any, *, own: bool = False, touching: bool = False) -> Any:
        args = [self.passed_on.reference(operand) or operand for operand in operands if operand is not self.project]
        self.steps.append({"do": do, "args": args})
        self.facts.append(("test", touching, ""))
        self.passed_on.note(len(self.steps) - 1, self.steps[-1], operands, result, own=own, touching=touching)
        return result

    def own(self, operands: tuple[Any, ...], result: Any) -> Any:
        return self.step("call", (self.project, *operands), result, own=True, touching=True)

    def settled(self) -> list[dict[str, Any]]:
        self.passed_on.settle(self.steps, self.facts)
        return self.steps


@pytest.fixture
def run() -> Run:
    return Run()


def token(length: int = 20) -> str:
    """Return a text that is no constant."""
    return "".join(chr(97 + at % 26) for at in range(length))


def test_what_is_passed_on_alone_is_not_compared(run: Run) -> None:
    text = run.own((1,), token())
    run.own((text,), 1)
    dumps, loads = run.settled()
    assert dumps.get("unused")
    assert loads == {"do": "call", "args": [["step", 0]]}


def test_what_no_step_uses_is_compared(run: Run) -> None:
    run.own((1,), token())
    assert run.settled() == [{"do": "call", "args": [1]}]


def test_what_is_compared_stands_for_itself(run: Run) -> None:
    text = run.own((1,), token())
    run.passed_on.look((text, "literal"))
    run.own((text,), 1)
    assert run.settled() == [{"do": "call", "args": [1]}, {"do": "call", "args": [token()]}]


def test_bytes_that_are_compared_are_written_as_such(run: Run) -> None:
    data = run.own((1,), token().encode())
    run.passed_on.look((data,))
    run.own((data,), 1)
    assert run.settled()[1] == {"do": "call", "args": [["bytes", token().encode().hex()]]}


@pytest.mark.parametrize("answer", [True, 20, None, 1.5])
def test_a_property_is_asked_of_any_text(run: Run, answer: Any) -> None:
    text = run.own((1,), token())
    run.step("method", (text, "v1."), answer)
    dumps, asks = run.settled()
    assert dumps.get("unused")
    assert asks == {"do": "method", "args": [["step", 0], "v1."], "asks": True}
    assert run.facts[1][1], "it is a step of the program"


def test_a_property_of_a_text_that_is_compared_is_none(run: Run) -> None:
    text = run.own((1,), token())
    run.step("method", (text, "v1."), True)
    run.passed_on.look((text,))
    dumps, asks = run.settled()
    assert "unused" not in dumps
    assert "asks" not in asks
    assert not run.facts[1][1]


def test_what_is_made_of_a_text_is_passed_on_too(run: Run) -> None:
    text = run.own((1,), token())
    tampered = run.step("operator", (text, "x"), token() + "x")
    run.own((tampered,), None)
    dumps, add, loads = run.settled()
    assert dumps.get("unused")
    assert add.get("unused")
    assert loads["args"] == [["step", 1]]


def test_what_is_compared_of_what_is_made_of_a_text_says_nothing_else_of_it(run: Run) -> None:
    text = run.own((1,), token())
    start = run.step("operator", (text, 10), token(10))
    run.passed_on.look((start,))
    dumps, part = run.settled()
    assert dumps.get("unused")
    assert part == {"do": "operator", "args": [["step", 0], 10], "asks": True}


def test_data_that_is_read_from_a_text_stands_for_itself(run: Run) -> None:
    text = run.own((1,), token())
    run.step("method", (text, "."), ["a", "b"])
    dumps, split = run.settled()
    assert dumps.get("unused")
    assert split["args"] == [["step", 0], "."]


def on_container(run: Run, do: str, result: Any, *, own: bool = False) -> int:
    """Take a step on what the first step gave."""
    run.steps.append({"do": do, "args": [["step", 0]]})
    run.facts.append(("test", True, ""))
    run.passed_on.note(len(run.steps) - 1, run.steps[-1], (), result, own=own, touching=True)
    return len(run.steps) - 1


def test_a_container_that_is_passed_on_is_not_compared(run: Run) -> None:
    run.own((1,), ["a", "b"])
    on_container(run, "call", 5, own=True)
    steps = run.settled()
    assert steps[0].get("unused")
    assert "asks" not in steps[1]


def test_what_is_asked_of_a_container_is_compared_in_its_place(run: Run) -> None:
    run.own((1,), ["a", "b"])
    on_container(run, "call", ["a", "b"])
    steps = run.settled()
    assert steps[0].get("unused")
    assert steps[1] == {"do": "call", "args": [["step", 0]], "asks": True}


def test_a_part_of_a_container_is_asked_like_any_text(run: Run) -> None:
    run.own((1,), [token()])
    part = token()
    run.steps.append({"do": "operator", "args": [["step", 0], 0]})
    run.facts.append(("test", True, ""))
    run.passed_on.note(1, run.steps[-1], (), part, own=False, touching=True)
    run.step("operator", ("age", part), True)
    steps = run.settled()
    assert [step.get("unused") for step in steps] == [True, True, None]
    assert steps[2]["args"] == ["age", ["step", 1]]


def test_a_container_that_nothing_uses_is_compared(run: Run) -> None:
    run.own((1,), ["a", "b"])
    assert run.settled() == [{"do": "call", "args": [1]}]


def compare(run: Run, names: str, *operands: Any) -> None:
    def add(step: dict[str, Any], touching: bool, _: Any) -> int:
        run.steps.append(step)
        run.facts.append(("test", touching, ""))
        return len(run.steps) - 1

    run.passed_on.compare(names.split(), operands, add, len(run.steps))


def test_places_are_compared_with_each_other(run: Run) -> None:
    """`order.index("b") < order.index("a")` holds in other orders too."""
    run.own((1,), ["a", "b"])
    first, second = on_container(run, "method", 500), on_container(run, "method", 700)
    compare(run, "lt", run.passed_on.numbers[0][1], run.passed_on.numbers[1][1])
    steps = run.settled()
    assert [step.get("unused") for step in steps] == [True, True, True, None]
    assert steps[3] == {"do": "operator", "name": "lt", "args": [["step", first], ["step", second]], "asks": True}


def test_places_are_compared_in_a_chain(run: Run) -> None:
    run.own((1,), ["a", "b", "c"])
    for place in (500, 700, 900):
        on_container(run, "method", place)
    compare(run, "lt lt", *(value for _, value in run.passed_on.numbers))
    steps = run.settled()
    assert [step.get("unused") for step in steps] == [True, True, True, True, None, None]
    assert [step["args"] for step in steps[4:]] == [[["step", 1], ["step", 2]], [["step", 2], ["step", 3]]]


def test_a_length_is_compared_with_a_limit(run: Run) -> None:
    run.own((1,), ["a", "b"])
    length = on_container(run, "call", 500)
    compare(run, "ge", 1000, run.passed_on.numbers[0][1])
    steps = run.settled()
    assert steps[length].get("unused")
    assert steps[2]["args"] == [1000, ["step", length]]


def test_a_number_that_comes_from_elsewhere_is_no_length(run: Run) -> None:
    run.own((1,), ["a", "b"])
    on_container(run, "call", 500)
    length = run.passed_on.numbers[0][1]
    run.own((2,), 7)
    compare(run, "lt", length, 1000)
    assert len(run.settled()) == 3


def test_a_short_text_and_the_tests_own_are_no_results(run: Run) -> None:
    given = token()
    assert run.own((given,), given) is given
    run.own((1,), token(7))
    assert run.passed_on.texts == {}
