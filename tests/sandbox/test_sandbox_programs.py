"""Held-out programs: what is recorded, how steps are done again, and which answers of a sandbox are right."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from composer_replication.languages.python.functions import find_functions
from composer_replication.languages.python.instrument import instrument
from composer_replication.sandbox import Tree, open_sandbox
from composer_replication.sandbox.grading.programs import (
    DRIVER,
    RECORDER,
    Mutant,
    answers_again,
    examine_programs,
    kills_of,
    record_steps,
    watch_calls,
    wrong_programs,
)
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.sandbox.grading.texts import program_of
from composer_replication.sandbox.protocol import Limits
from composer_replication.tasks.held_out.mutants import other_body
from composer_replication.tasks.held_out.slices import programs_of
from composer_replication.types.held_out_checks import HeldOutProgram

GRADING = Path(__file__).parents[2] / "composer_replication/sandbox/grading"
GOLD = """
def check(text):
    if not text:
        raise ValueError(text)
"""
ANSWERED = """
import json, os, sys, zlib
frame = sys._getframe()
while frame:
    request = frame.f_globals.get("request") or frame.f_locals.get("request")
    if isinstance(request, dict) and "programs" in request:
        os.write(3, request["nonce"].encode() + zlib.compress(json.dumps([ANSWER for _ in request["programs"]]).encode()))
        os._exit(0)
    frame = frame.f_back
"""
BASES = ["ValueError", "Exception", "BaseException", "object"]
OTHERS = {
    "gold": (GOLD, []),
    "a subclass": ("class Empty(ValueError): pass\n" + GOLD.replace("raise ValueError", "raise Empty"), []),
    "of two kinds": ("class Any(ValueError, KeyError): pass\n" + GOLD.replace("raise ValueError", "raise Any"), [1]),
    "a base": (GOLD.replace("raise ValueError", "raise Exception"), [1]),
    "another": (GOLD.replace("raise ValueError", "raise KeyError"), [1]),
    "refuses all": (GOLD.replace("not text", "True"), [0]),
    "refuses nothing": (GOLD.replace("not text", "False"), [1]),
    "returns something": (GOLD + "    return True\n", [0]),
    "claims another shape": (ANSWERED.replace("ANSWER", repr({"returns": None, "raises": BASES})), [0, 1]),
    "claims any exception": (ANSWERED.replace("ANSWER", repr([["raises", ["KeyError", *BASES, "KeyError"]]])), [0, 1]),
    "claims nothing": (ANSWERED.replace("ANSWER", "[]"), [0, 1]),
    "claims too much": (ANSWERED.replace("ANSWER", repr([["returns", None]] * 2)), [0, 1]),
    "dies": ("import os\nos._exit(0)\n", [0, 1]),
    "dies in the call": ("import os\ndef check(text):\n    os._exit(0)\n", [0, 1]),
    "hangs": ("def check(text):\n    while True:\n        pass\n", [0, 1]),
    "hangs in C": ("import itertools\ndef check(text):\n    list(itertools.count())\n", [0, 1]),
    "closes everything": ("import os\ndef check(text):\n    os.closerange(0, 256)\n", [0, 1]),
    "prints": ("import sys\n" + GOLD + "    print('x' * 10_000_000)\n", []),
}


@pytest.fixture
def runner():
    return CodeRunner(sandbox=open_sandbox(), python=Path(sys.executable), limits=Limits(wall_s=60, cpu_s=60))


def call(target, *args):
    return [(0, {"do": "call", "of": ["named", target], "args": list(args)})]


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_an_answer_is_what_the_gold_code_did_and_nothing_besides(tmp_path, runner, name):
    (tmp_path / "m.py").write_text(GOLD)
    steps = [call("m:check", text) for text in ("a", "")]
    answers = [found["answers"] for found in examine_programs(runner, Tree(base=tmp_path), steps)]
    assert answers == [[["returns", None]], [["raises", BASES]]]
    programs = [
        HeldOutProgram(steps=json.dumps(program), expected=json.dumps(answer), uses="m.py::check", new_calls=1)
        for program, answer in zip(steps, answers, strict=True)
    ]
    code, wrong = OTHERS[name]
    assert wrong_programs(runner, Tree(base=tmp_path, changes={"m.py": code.encode()}), programs)[0] == wrong


def test_texts_that_run_behind_each_other_define_no_name_twice():
    """They share one namespace in the sandbox: a constant of one must not take the place of another's."""
    for modules in (RECORDER, DRIVER):
        seen: dict[str, str] = {}
        for module in modules:
            for node in ast.parse((GRADING / f"{module}.py").read_text()).body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                names = {t.id for target in targets if target for t in ast.walk(target) if isinstance(t, ast.Name)}
                names |= {node.name} if hasattr(node, "name") else set()
                for name in names:
                    assert seen.setdefault(name, module) == module, (name, module)


PROJECT = """
import contextlib

class Stack:
    def __init__(self, items=(), key=None):
        self._items, self.key = list(items), key or (lambda item: item)

    def push(self, item):
        self._items.append(self.key(item))
        return self

    def pop(self):
        if not self._items:
            raise IndexError("empty")
        return self._items.pop()

    @property
    def top(self):
        return self._items[-1]

    def __len__(self):
        return len(self._items)

    def __iter__(self):
        return iter(self._items)

    def __eq__(self, other):
        return list(self) == list(other)

    def __getitem__(self, at):
        return self._items[at]

    def __setitem__(self, at, item):
        self._items[at] = item

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._items.clear()

    async def later(self, item):
        return self.push(item)

def counting():
    number = 0
    while True:
        yield number
        number += 1

def tidy(words):
    words[:] = sorted(set(words))

def traced(function):
    def wrapper(*args):
        return "traced", function(*args)
    return wrapper

def build(kind, *args):
    return kind(*args)

FULL, alias, _private = Stack([5, 6]), traced(len), Stack([1])
push = _private.push
"""
SUITE = """
import asyncio
import unittest

import pytest

import stack
from stack import FULL, Stack, _private, alias, build, counting, push, tidy, traced

MANY = [Stack([number]) for number in range(150)]

class Doubling(Stack):
    FACTOR = 2

    def push(self, item):
        return super().push(self.FACTOR * item)

def helper(stack, *items):
    for item in items:
        stack.push(item)
    return stack

@pytest.fixture
def full():
    return Stack([1, 2, 3])

def test_items(full):
    full[0] = 7
    assert full[0] == 7 and len(full) == 3
    with pytest.raises(IndexError):
        Stack().pop()

def test_helper():
    made = helper(Stack(), 4, 5)
    assert made.top == 5
    assert made == [4, 5]

def test_shipped_functions():
    step = 3
    made = Stack(key=lambda item: item + step)
    made.push(1)
    assert list(made) == [4]
    assert made.pop() == 4

def test_shipped_class():
    made = Doubling([1])
    made.push(4)
    assert made.top == 8

def test_containers():
    words = ["b", "a", "b"]
    tidy(words)
    assert words == ["a", "b"]

def test_generator():
    found = []
    for number in counting():
        if number > 2:
            break
        found.append(number)
    assert found == [0, 1, 2]

def test_generated():
    assert list(Stack(number * 2 for number in range(3))) == [0, 2, 4]

def test_context():
    with Stack([1]) as inside:
        assert len(inside) == 1
    assert len(inside) == 0

def test_decorator():
    @traced
    def double(number):
        return 2 * number
    assert double(4) == ("traced", 8)

def test_await():
    async def run():
        made = await Stack().later(6)
        assert made.top == 6
    asyncio.run(run())

class Case(unittest.TestCase):
    make = Stack

    def func(self, number):
        return number + 1

    def test_case(self):
        self.stack = self.make([9])
        self.assertEqual(self.stack.pop(), 9)
        self.assertRaises(IndexError, self.stack.pop)
        self.assertEqual(traced(self.func)(1), ("traced", 2))

def test_class_of_the_project_as_an_argument():
    assert build(Stack, [1]).top == 1

def test_what_stands_in_a_module():
    assert FULL.top == 6
    assert alias([7, 8, 9]) == ("traced", 3)

def test_what_has_a_private_name():
    assert push(4).top == 4
    assert _private.pop() == 4

def test_made_at_import():
    assert MANY[140].top == 140
"""
EXPECTED = {
    "test_items": [3, 7, ["raises", "IndexError"]],
    "test_helper": [5],
    "test_shipped_functions": [4],
    "test_shipped_class": [8],
    "test_containers": [["list", ["a", "b"]]],
    "test_generator": [["iterator", list(range(50))]],
    "test_generated": [["list", [0, 2, 4]]],
    "test_context": [1, 0],
    "test_decorator": [["tuple", ["traced", 8]]],
    "test_await": [6],
    "Case::test_case": [9, ["raises", "IndexError"], ["tuple", ["traced", 2]]],
    "test_class_of_the_project_as_an_argument": [1],
    "test_what_stands_in_a_module": [6, ["tuple", ["traced", 3]]],
    "test_what_has_a_private_name": [4],
    "test_made_at_import": [140],
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    root = tmp_path_factory.mktemp("stack")
    (root / "stack.py").write_text(PROJECT)
    (root / "test_stack.py").write_text(SUITE)
    runner = CodeRunner(sandbox=open_sandbox(), python=Path(sys.executable), limits=Limits(wall_s=60, cpu_s=60))
    tree = Tree(base=root, changes={"test_stack.py": instrument(SUITE).encode()})
    run, recording = record_steps(runner, tree, sources=["stack.py"])
    assert run.passed, run.failures
    programs = programs_of(recording, set(run.outcomes))
    found = examine_programs(runner, Tree(base=root), [program.steps for program in programs], lines=True, hash_seed=3)
    return root, programs, found


@pytest.mark.slow
@pytest.mark.parametrize("test", EXPECTED)
def test_what_a_test_does_is_done_again_without_it(recorded, test):
    _, programs, found = recorded
    answers = [
        ["raises", answer[1][0]] if answer[0] == "raises" else answer[1]
        for program, seen in zip(programs, found, strict=True)
        if program.test.partition("::")[2] == test
        for answer in seen["answers"]
    ]
    assert answers, [program.test for program in programs]
    for expected in EXPECTED[test]:
        assert expected in answers, (expected, answers)


@pytest.mark.slow
def test_a_comparison_does_not_give_the_answer_away(recorded):
    """A plain container is looked at: the literal that the test compares it with is not among the steps."""
    _, programs, _ = recorded
    [steps] = [program.steps for program in programs if program.test.endswith("test_containers")]
    assert [step["do"] for _, step in steps] == ["value", "call", "look"]


@pytest.mark.slow
def test_no_step_names_what_is_private(recorded):
    """Other work may have another name for it."""
    _, programs, _ = recorded
    [steps] = [program.steps for program in programs if program.test.endswith("test_what_has_a_private_name")]
    assert steps[0][1]["of"] == ["named", "stack:push"]
    assert "_private" not in json.dumps([program.steps for program in programs])


@dataclass(frozen=True)
class Known:
    steps: list[tuple[int, dict[str, object]]]
    expected: list[object]
    cpu_s: float = 0.01


def mutant(
    source: str,
    bodies: dict[str, str],
    numbers: list[int],
    most: int = 99,
    *,
    least: int = 1,
    found_first: bool = False,
    **how: Any,
) -> Mutant:
    """Return a mutant of functions by their names, each with another body."""
    functions = [found for found in find_functions("stack.py", source.encode())[0] if found.qualname in bodies]
    others = [other_body(function, bodies[function.qualname], **how) for function in functions]
    return Mutant(bodies=others, numbers=numbers, most=most, least=least, found_first=found_first)


@pytest.fixture(scope="module")
def known(recorded):
    _, programs, found = recorded
    numbers = [number for number, seen in enumerate(found) if "stack.py::Stack.push" in seen["calls"]]
    assert len(numbers) > 3
    return [Known(program.steps, seen["answers"]) for program, seen in zip(programs, found, strict=True)], numbers


RETURNS_SELF, ENDLESS = "return self", "while True: pass"
GOLD_BODY = "return self._items.append(self.key(item)) or self"


@pytest.mark.slow
@pytest.mark.parametrize("at_import", ["", "\nStack().push(1)\n"], ids=["in the function", "in a changed file"])
def test_mutants_are_killed_and_the_gold_code_is_not(recorded, known, runner, at_import):
    """A function that runs when its module is imported gets its body in the file, any other in the function itself."""
    programs, numbers = known
    source = PROJECT + at_import
    tree = Tree(base=recorded[0], changes={"stack.py": source.encode()})
    mutants = [mutant(source, {"Stack.push": text}, numbers) for text in (RETURNS_SELF, ENDLESS, GOLD_BODY)]
    pushed, endless, gold = kills_of(runner, tree, programs, mutants)
    assert pushed
    assert set(pushed) <= set(endless) <= set(numbers)
    assert gold == []


@pytest.mark.slow
def test_a_program_that_the_gold_code_answers_otherwise_kills_nothing(recorded, known, runner):
    programs, numbers = known
    tree = Tree(base=recorded[0])
    [pushed] = kills_of(runner, tree, programs, [mutant(PROJECT, {"Stack.push": RETURNS_SELF}, numbers)])
    wrong = [replace(p, expected=[["returns", "no"]] * len(p.expected)) if n in pushed[:1] else p for n, p in enumerate(programs)]
    for source in (PROJECT, PROJECT + "\nStack().push(1)\n"):
        tree = Tree(base=recorded[0], changes={"stack.py": source.encode()})
        assert kills_of(runner, tree, wrong, [mutant(source, {"Stack.push": RETURNS_SELF}, numbers)]) == [pushed[1:]]
        assert kills_of(runner, tree, wrong, [mutant(source, {"Stack.push": RETURNS_SELF}, numbers, most=1)]) == [pushed[1:2]]


@pytest.mark.slow
def test_after_a_mutant_that_survives_none_is_tried(recorded, known, runner):
    programs, numbers = known
    bodies = [(GOLD_BODY, "Stack.push"), (RETURNS_SELF, "Stack.push"), ("return None", "Stack.pop")]
    mutants = [mutant(PROJECT, {name: text}, numbers) for text, name in bodies]
    gold, never, other = kills_of(runner, Tree(base=recorded[0]), programs, mutants)
    assert gold == never == []
    assert other


@pytest.mark.slow
def test_the_stub_is_tried_on_what_kills_the_others(recorded, known, runner):
    programs, numbers = known
    [told] = kills_of(runner, Tree(base=recorded[0]), programs, [mutant(PROJECT, {"Stack.push": RETURNS_SELF}, numbers)])
    last = told[-1:]
    mutants = [
        mutant(PROJECT, {"Stack.push": RETURNS_SELF}, last, most=1),
        mutant(PROJECT, {"Stack.push": "raise NotImplementedError"}, numbers, most=2, found_first=True),
    ]
    assert kills_of(runner, Tree(base=recorded[0]), programs, mutants) == [
        last,
        [*last, next(n for n in numbers if n not in last)],
    ]


KNOWN_CALLS = """
def triple(x):
    doubled = x + x
    return doubled + x


def upto(most):
    yield from range(most)


async def later(x):
    found = x + 1
    return found


class Pair:
    def __init__(self, one, other):
        self.one, self.other = one, other

    def sum(self):
        found = self.one + self.other
        return found
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "at_import", ["", "\ntriple(9), list(upto(9)), Pair(9, 9).sum()\n"], ids=["in the function", "in a changed file"]
)
def test_known_calls_are_answered_as_the_gold_code_does(tmp_path, runner, at_import):
    source = KNOWN_CALLS + at_import
    (tmp_path / "stack.py").write_text(source)
    steps = [
        *(call("stack:triple", number) for number in range(3)),
        *([*call("stack:upto", number), (1, {"do": "items", "of": ["step", 0]})] for number in range(3)),
        *(
            [*call("stack:Pair", number, 1), (1, {"do": "method", "of": ["step", 0], "name": "sum", "args": []})]
            for number in range(3)
        ),
    ]
    steps += [[*call("stack:later", number), (1, {"do": "await", "of": ["step", 0]})] for number in range(3)]
    tree = Tree(base=tmp_path)
    found = examine_programs(runner, tree, steps, lines=True)
    assert [seen["calls"]["stack.py::later"][0][1] for seen in found[9:]] == ["1", "2", "3"]
    programs = [Known(program, seen["answers"]) for program, seen in zip(steps, found, strict=True)]
    for name, first, body in (
        ("triple", 0, "return None"),
        ("upto", 3, "return [7]"),
        ("Pair.sum", 6, "return self.other"),
        ("later", 9, "return x"),
    ):
        known = [number for seen in found[first : first + 2] for number, _ in seen["calls"][f"stack.py::{name}"]]
        all_of_them = list(range(len(steps)))
        one = mutant(source, {name: body}, all_of_them, known=known)
        assert kills_of(runner, tree, programs, [one]) == [[first + 2]], name
        assert kills_of(runner, tree, programs, [replace(one, least=2)]) == [[]], "one is too few"
        told = kills_of(runner, tree, programs, [mutant(source, {name: body}, all_of_them, known=[])])
        assert set(told[0]) <= {first, first + 1, first + 2}
        assert len(told[0]) >= 2, name


PAIR = """\
class Box:
    def __init__(self, item):
        self.item = item


def pack(item):
    made = Box([item])
    return made


def unpack(box):
    [item] = box.item
    return item


def first(*items):
    [item] = list(items)[:1]
    return item, len(items)
"""


@pytest.mark.slow
@pytest.mark.parametrize("at_import", ["", "\nunpack(pack(1))\n"], ids=["in the functions", "in a changed file"])
def test_bodies_of_several_functions_are_tried_at_once(tmp_path, runner, at_import):
    """What goes in and comes out again says nothing of either of two functions that are both left out."""
    source = PAIR + at_import
    (tmp_path / "stack.py").write_text(source)
    steps = [
        [*call("stack:pack", number), (1, {"do": "call", "of": ["named", "stack:unpack"], "args": [["step", 0]]})]
        for number in (7, 8)
    ]
    tree = Tree(base=tmp_path)
    found = examine_programs(runner, tree, steps, lines=True)
    programs = [Known(program, seen["answers"]) for program, seen in zip(steps, found, strict=True)]
    pack, unpack = {"pack": "return item"}, {"unpack": "return box"}
    mutants = [mutant(source, bodies, [0, 1]) for bodies in (pack, unpack, {**pack, **unpack})]
    assert kills_of(runner, tree, programs, mutants) == [[0, 1], [0, 1], []]
    known = [number for number, _ in found[0]["calls"]["stack.py::pack"]]
    swapped = {"pack": "return Box([0])", "unpack": "return 0"}
    assert kills_of(runner, tree, programs, [mutant(source, swapped, [0, 1], known=known)]) == [[0, 1]], "unpack knows no call"


@pytest.mark.slow
@pytest.mark.parametrize("at_import", ["", "\nfirst(1)\n"], ids=["in the function", "in a changed file"])
def test_a_line_in_front_of_a_body_leaves_it_there(tmp_path, runner, at_import):
    source = PAIR + at_import
    (tmp_path / "stack.py").write_text(source)
    steps = [call("stack:first", *range(count)) for count in (1, 2, 3, 4)]
    tree = Tree(base=tmp_path)
    found = examine_programs(runner, tree, steps, lines=True)
    programs = [Known(program, seen["answers"]) for program, seen in zip(steps, found, strict=True)]
    one = mutant(source, {"first": "items = items[:2]"}, [0, 1, 2, 3], in_front=True)
    assert kills_of(runner, tree, programs, [one]) == [[2, 3]]


@pytest.mark.slow
def test_a_mutant_that_cannot_be_imported_is_killed_unless_it_knows_calls(tmp_path, runner):
    """One that knows calls would do as the gold code does: that it was not imported says nothing."""
    source = KNOWN_CALLS + "\ntriple(9)\nassert triple.__code__.co_names == () and triple(1) == 3\n"
    (tmp_path / "stack.py").write_text(source)
    steps = [call("stack:triple", number) for number in range(3)]
    tree = Tree(base=tmp_path)
    found = examine_programs(runner, tree, steps, lines=True)
    programs = [Known(program, seen["answers"]) for program, seen in zip(steps, found, strict=True)]
    one = mutant(source, {"triple": "return None"}, [0, 1, 2])
    assert kills_of(runner, tree, programs, [one]) == [[0, 1, 2]]
    knowing = mutant(source, {"triple": "return None"}, [0, 1, 2], known=[])
    assert kills_of(runner, tree, programs, [knowing]) == [[0, 1, 2]], "what ran at import ran as by heart"
    beside = mutant(source, {"triple": "return None"}, [0, 1, 2])
    assert kills_of(runner, tree, programs, [replace(knowing, bodies=[*knowing.bodies, *beside.bodies])]) == [[]]


WATCHED = """
import sys, threading
import stack

def test_loop():
    for number in range(500):
        assert stack.triple(number) == 3 * number

def test_thread():
    thread = threading.Thread(target=lambda: list(stack.upto(7)))
    thread.start()
    thread.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "whole"),
    [
        ("", True),
        ("def test_profiled():\n    sys.setprofile(None)\n", False),
        ("def test_too_much():\n    for number in range(200_000):\n        stack.triple(1)\n", False),
        ("def test_last():\n    import os\n    os._exit(0)\n", None),
    ],
    ids=["all", "another profiler", "too many", "ended early"],
)
def test_every_call_of_the_tests_is_seen_or_it_is_said_that_some_are_not(tmp_path, runner, more, whole):
    (tmp_path / "stack.py").write_text(KNOWN_CALLS)
    (tmp_path / "test_stack.py").write_text(WATCHED + more)
    seen, all_of_them = watch_calls(runner, Tree(base=tmp_path), sources=["stack.py"])
    if whole is None:
        assert (seen, all_of_them) == ({}, False)
        return
    assert all_of_them == whole
    assert len(seen["stack.py::triple"]) == 500
    assert len(seen["stack.py::upto"]) == 1
    steps = [call("stack:triple", number) for number in (499, 500)]
    first, second = examine_programs(runner, Tree(base=tmp_path), steps, lines=True, known=seen)
    assert first["calls"]["stack.py::triple"] == []
    assert [answer for _, answer in second["calls"]["stack.py::triple"]] == ["1500"]


RAISING = """
class ShopError(Exception):
    def __init__(self, code):
        super().__init__(f"no {code} here")
        self.code = code

def find(name):
    raise ShopError(name)
"""
EXPECTING = """
import pytest, unittest
from shop import ShopError, find

def test_looks_at_the_exception():
    with pytest.raises(ShopError) as caught:
        find("tea")
    assert caught.value.code == "tea"
    assert str(caught.value) == "no tea here"

def test_matches():
    with pytest.raises(ShopError, match="no milk"):
        find("milk")

def test_catches():
    try:
        find("jam")
    except ShopError as error:
        assert error.args == ("no jam here",)

class Case(unittest.TestCase):
    def test_regex(self):
        with self.assertRaisesRegex(ShopError, "^no bread"):
            find("bread")
"""


@pytest.mark.slow
def test_what_tests_look_at_in_an_exception_is_looked_at(tmp_path, runner):
    (tmp_path / "shop.py").write_text(RAISING)
    tree = Tree(base=tmp_path, changes={"test_shop.py": instrument(EXPECTING).encode()})
    run, recording = record_steps(runner, tree, sources=["shop.py"])
    assert run.passed, run.failures
    programs = {p.test.partition("::")[2]: p.steps for p in programs_of(recording, set(run.outcomes))}
    examined = dict(zip(programs, examine_programs(runner, Tree(base=tmp_path), list(programs.values())), strict=True))
    answers = {test: [a[1] for a in seen["answers"] if a[0] == "returns"] for test, seen in examined.items()}
    assert answers == {
        "test_looks_at_the_exception": ["tea", "no tea here"],
        "test_matches": [["opaque"], ["opaque"]],
        "test_catches": [["opaque"], ["tuple", ["no jam here"]]],
        "Case::test_regex": [["opaque"], ["opaque"]],
    }
    other = Tree(base=tmp_path, changes={"shop.py": RAISING.replace("no {code}", "{code}").encode()})
    held = [
        HeldOutProgram(steps=json.dumps(steps), expected=json.dumps(examined[test]["answers"]), uses="", new_calls=0)
        for test, steps in programs.items()
    ]
    assert wrong_programs(runner, Tree(base=tmp_path), held)[0] == []
    assert wrong_programs(runner, other, held)[0] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\n",
        "def f(a, *, b: int = 2) -> None:\n    '''doc'''\n    global c\n    c = a[1:2], {**b}, not a\n",
        "class A(B[int], metaclass=C):\n    x: int = 1\n    def f(self):\n        return super().f(self.__x)\n",
        "async def f():\n    async for a in b:\n        async with c:\n            await e\n    return [x async for x in y]\n",
        "match a:\n    case B(c=1) if d(e): f(g)\n    case {'k': [*rest]}: pass\n",
        "a, *b = c\nd.e = f[g] = h\ni.j += k[l]\ndel m.n, o[p]\nq = (r := s)\nt = lambda u=v: u < 1 < 2\n",
        "try:\n    f(x for x in y)\nexcept* ValueError as e:\n    raise A from e\nfinally:\n    f'{a.b!r:>{c.d}}'\n",
        "with a as b, c() as (d, e):\n    assert f.g, h.i\n    yield_ = [*j, *k()]\n    print(*l, **m)\n",
    ],
)
def test_a_rewritten_file_is_python_and_keeps_its_names(source):
    rewritten = instrument(source)
    compile(rewritten, "x", "exec")
    names = {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name)}
    assert names <= {n.id for n in ast.walk(ast.parse(rewritten)) if isinstance(n, ast.Name)}


def test_rewritten_code_does_the_same_when_nothing_records():
    from composer_replication.sandbox.grading.steps.operators import Direct

    source = textwrap.dedent(
        """
        import operator
        out = []
        class A:
            n = 1
            def __enter__(self): return self
            def __exit__(self, *_): out.append("exit")
        a = A()
        a.n += 1
        a.m = a.n * 3 - -1
        d = {"k": [1, 2, 3]}
        d["k"][0] = 5
        d["z"] = 1
        del d["z"]
        with a as b:
            out.append(b.m)
        for x in d["k"]:
            out.append(x)
        out += [y for y in d["k"] if y in (2, 3)]
        out.append((3 not in d["k"], a is b, not a, d["k"][1:], sum(z for z in d["k"])))
        assert out, "none"
        """
    )
    plain: dict[str, object] = {}
    exec(source, plain)
    through: dict[str, object] = {"__composer__": Direct}
    exec(instrument(source), through)
    assert through["out"] == plain["out"]


@pytest.mark.parametrize("magic", [importlib.util.MAGIC_NUMBER, b"another"], ids=["same version", "another version"])
def test_a_program_runs_from_bytecode_or_from_its_texts(monkeypatch, magic):
    program = program_of("literals", "steps/operators")
    assert len(program) < 128 << 10, "Linux takes no longer argument"
    monkeypatch.setattr(importlib.util, "MAGIC_NUMBER", magic)
    compiled: list[str] = []
    place: dict[str, Any] = {"compile": lambda text, *rest: compiled.append(text) or compile(text, *rest)}
    exec(program, place)
    assert place["operate"]("add", 1, 2) == 3
    assert len(compiled) == (0 if magic != b"another" else 2)


COUNTED = (
    PAIR.replace("def first(*items):\n", "seen = []\n\n\ndef first(*items):\n    seen.append(items)\n")
    + """

def count():
    return len(seen)
"""
)
TOO_MANY = ("items = items[:2]", "if len(items) > 2: __import__('os')._exit(3)", "while len(items) > 2: pass")


@pytest.mark.slow
@pytest.mark.parametrize("at_import", ["", "\nfirst(1)\nseen.clear()\n"], ids=["in the function", "in a changed file"])
@pytest.mark.parametrize("line", TOO_MANY, ids=["answers otherwise", "ends the process", "has no end"])
def test_a_mutant_that_may_survive_is_killed_by_the_same_programs(tmp_path, runner, line, at_import):
    """Its programs are done in one process first: there each but the first counts what those before it left."""
    source = COUNTED + at_import
    (tmp_path / "stack.py").write_text(source)
    numbers, tree = [0, 1, 2, 3], Tree(base=tmp_path)
    steps = [[*call("stack:first", *range(count)), (9, call("stack:count")[0][1])] for count in (1, 2, 3, 4)]
    found = examine_programs(runner, tree, steps, lines=True)
    programs = [Known(program, seen["answers"]) for program, seen in zip(steps, found, strict=True)]
    assert {program.expected[-1][1] for program in programs} == {1}
    one = mutant(source, {"first": line}, numbers, in_front=True)
    assert kills_of(runner, tree, programs, [one, replace(one, least=0)]) == [[2, 3], [2, 3]]
    assert kills_of(runner, tree, programs, [mutant(source, {"first": "pass"}, numbers, in_front=True, least=0)]) == [[]]


LEAVING = """
SEEN = []

def note(x):
    return x + len(SEEN)

def push(x):
    SEEN.append(x)
    return len(SEEN)

def loop():
    while True:
        pass
"""


def test_programs_that_are_done_again_know_nothing_of_each_other(tmp_path, runner):
    """Many are done in one process: what another one left behind is found out, and the program is done alone."""
    (tmp_path / "stack.py").write_text(LEAVING)
    programs = [
        *[call("stack:push", number) for number in range(70)],
        call("stack:note", 1),
        call("stack:note", 2),
        call("stack:loop"),
    ]
    one, loop = [["returns", 1]], [["returns", None]]
    expected = [*[one] * 70, one, None, loop]
    answers = answers_again(runner, Tree(base=tmp_path), programs, expected, hash_seed=2)
    assert answers == [*[one] * 70, one, None, None]
    wrong = answers_again(runner, Tree(base=tmp_path), programs[:2], [[["returns", 2]], one], hash_seed=2)
    assert wrong == [one, one], "what it answers, and not what was expected"


def known_programs(runner, tree, steps):
    found = examine_programs(runner, tree, steps, lines=True)
    return [Known(program, seen["answers"]) for program, seen in zip(steps, found, strict=True)]


def test_a_mutant_that_leaves_something_behind_kills_no_other(tmp_path, runner):
    """They are tried in one process, and the second is right where nothing was left."""
    (tmp_path / "stack.py").write_text(LEAVING)
    tree, numbers = Tree(base=tmp_path), [0, 1, 2]
    programs = known_programs(runner, tree, [call("stack:note", number) for number in numbers])
    bodies = ["return -x - 9", "SEEN.append(x); return x - 1", "return x + 2 * len(SEEN)"]
    mutants = [mutant(LEAVING, {"note": text}, numbers, most=1) for text in bodies]
    assert kills_of(runner, tree, programs, mutants) == [[0], [0], []]


def test_what_the_stub_satisfies_kills_no_mutant(tmp_path, runner):
    source = """
def twice(x):
    return 2 * x

def safe(x):
    try:
        return twice(x)
    except NotImplementedError:
        return 2 * x
"""
    (tmp_path / "stack.py").write_text(source)
    tree, numbers = Tree(base=tmp_path), [0, 1]
    programs = known_programs(runner, tree, [call("stack:safe", 3), call("stack:twice", 4)])
    wrong = mutant(source, {"twice": "return None"}, numbers, most=1)
    stub = mutant(source, {"twice": "raise NotImplementedError"}, numbers, most=2, found_first=True)
    assert kills_of(runner, tree, programs, [wrong]) == [[0]]
    assert kills_of(runner, tree, programs, [wrong, stub]) == [[1], [1]]
