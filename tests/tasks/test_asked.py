"""Texts that tests only ask for properties: what they ask is tried as a body."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from composer_replication.languages.functions import Function
from composer_replication.languages.python.functions import find_functions
from composer_replication.languages.python.trivial import Asked, asked_bodies
from composer_replication.tasks import BuildOptions, build_tasks, load_tasks
from composer_replication.tasks.held_out.book import ObservedProgram
from composer_replication.tasks.held_out.mutants import asked_of

SHOP = '''
"""Receipts."""


class Receipt:
    """What was sold."""

    def __init__(self, customer):
        self.customer = customer
        self.lines = []

    def add(self, name, cents):
        """Add a line."""
        self.lines.append((name, cents))

    def show(self):
        """Return the receipt for people."""
        lines = [f"{name:<20}{cents / 100:>8.2f}" for name, cents in self.lines]
        return "\\n".join([f"Receipt for {self.customer}", *lines, "Thank you"])

    def total(self):
        """Return the sum in cents."""
        return sum(cents for _, cents in self.lines)


def usage(program, *options):
    """Return how a program is called."""
    return f"usage: {program} " + " ".join(f"[{option}]" for option in options)
'''
TESTS = """
import pytest
from shop import Receipt, usage


@pytest.mark.parametrize(("customer", "name"), [("Ada", "pen"), ("Bob", "book"), ("Carol", "ink")])
def test_show(customer, name):
    receipt = Receipt(customer)
    receipt.add(name, 150)
    receipt.add("bag", 10)
    text = receipt.show()
    assert customer in text
    assert name in text
    assert text.startswith("Receipt")
    assert text.endswith("Thank you")
    assert receipt.total() == 160


def test_total():
    receipt = Receipt("Dan")
    assert receipt.total() == 0
    for cents in (5, 70, 900):
        receipt.add("thing", cents)
    assert receipt.total() == 975


@pytest.mark.parametrize("program", ["tool", "make", "composer"])
def test_usage(program):
    assert usage(program, "--verbose", "--out").startswith("usage: " + program)
    assert usage(program, "-v") == f"usage: {program} [-v]"
"""
SHOW, USAGE = "shop.py::Receipt.show", "shop.py::usage"
TEXT = ["step", 0]


def functions() -> dict[str, Function]:
    return {found.qualname: found for found in find_functions("shop.py", SHOP.encode())[0]}


def program(steps: list[tuple[dict[str, Any], Any]], key: str = SHOW, *, new: bool = False) -> ObservedProgram:
    return ObservedProgram(
        steps=[*enumerate(step for step, _ in steps)],
        expected=[answer for _, answer in steps],
        entered=frozenset({key}),
        called=frozenset({key}),
        lines={},
        cpu_s=0.01,
        new_calls={key: ["'text'"]} if new else {},
    )


def asks(name: str, text: str, answer: Any = True) -> tuple[dict[str, Any], Any]:
    """Return a step that asks a text for something, and its answer."""
    method = {"do": "method", "of": TEXT, "name": name, "args": [text], "asks": True}
    contains = {"do": "operator", "name": name, "args": [text, TEXT], "asks": True}
    return contains if name in ("in", "not in") else method, ["returns", answer]


def pattern(text: str) -> tuple[dict[str, Any], Any]:
    return {"do": "call", "of": ["named", "re:search"], "args": [text, TEXT]}, ["returns", ["opaque"]]


def test_what_tests_ask_is_collected_from_their_own_programs() -> None:
    own = program([asks("in", "Ada"), asks("startswith", "Receipt"), asks("endswith", "you"), pattern("pen"), pattern("p.n")])
    varied = program([asks("in", "Ava"), asks("startswith", "Receipt")], new=True)
    other = program([asks("in", "usage")], USAGE)
    all_asked, undenied = asked_of(functions()["Receipt.show"], [own, varied, other])
    assert all_asked == undenied == Asked(begins=("Receipt",), holds=("Ada", "pen"), ends=("you",), everywhere="Receipt")
    assert all_asked.text == "Receipt Ada pen you"


def test_what_some_program_does_not_find_is_left_out_of_one() -> None:
    own = program([asks("in", "Ada"), asks("in", "pen"), asks("not in", "ink"), asks("count", "15", 2)])
    varied = program([asks("in", "pen", answer=False), asks("count", "15", 0)], new=True)
    all_asked, undenied = asked_of(functions()["Receipt.show"], [own, varied])
    assert (all_asked.text, undenied.text) == ("Ada pen 15", "Ada")


def test_where_no_test_asks_the_varied_programs_do() -> None:
    all_asked, _ = asked_of(functions()["Receipt.show"], [program([]), program([asks("in", "Ava")], new=True)])
    assert all_asked.text == "Ava"


def test_texts_begin_with_what_all_programs_agree_on() -> None:
    own, varied = (
        program([asks("startswith", "usage: tool")], USAGE),
        program([asks("startswith", "usage: took")], USAGE, new=True),
    )
    all_asked, _ = asked_of(functions()["usage"], [own, varied])
    assert (all_asked.first, all_asked.everywhere) == ("usage: tool", "usage: ")


def test_bodies_hold_what_is_asked_alone_and_with_the_arguments() -> None:
    asked = Asked(begins=("usage: tool",), holds=("-v",), ends=("]",), everywhere="usage: ")
    bodies = asked_bodies(functions()["usage"], asked)
    assert bodies[0] == "return 'usage: tool -v ]'"
    assert "return 'usage: ' + ' '.join(map(str, locals().values())) + ' -v ]'" in bodies
    assert "return 'usage: tool -v ' + str(locals()) + ']'" in bodies
    assert len(bodies) == 7
    assert "return 'Ada ' + str(vars(self))" in asked_bodies(functions()["Receipt.show"], Asked(holds=("Ada",)))
    assert asked_bodies(functions()["usage"], Asked()) == []


@pytest.mark.slow
def test_a_text_of_which_nothing_but_words_is_asked_is_weak(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/shop.py").write_text(SHOP)
    (tmp_path / "shop/test_shop.py").write_text(TESTS)
    build_tasks(str(tmp_path / "shop"), tmp_path / "tasks", BuildOptions(trivial=True, forgeable=True))
    weak = {task.spec.deleted[0].qualname: task.spec.hidden.weakness for task in load_tasks(tmp_path / "tasks")}
    said = weak["Receipt.show"]
    assert "a trivial body satisfies its held-out programs: `return 'Receipt' + str(vars(self)) + '" in said
    assert "Thank you'` in Receipt.show" in said
    assert weak["Receipt.total"] == weak["usage"] == ""
