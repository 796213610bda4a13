"""Calls are described alike when their arguments are alike, and otherwise when a difference can be seen."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import datetime
import decimal
import dis
import enum
import functools
import inspect
import re
import sys
from types import CodeType
from typing import Any

import pytest

from composer_replication.sandbox.grading.steps.calls import Calls, Description, answer_of, call_of, start_of


class Slotted:
    __slots__ = ("__own", "shown")

    def __init__(self, own: object, shown: object) -> None:
        self.__own, self.shown = own, shown


class Loud(list[Any]):
    """Raises where a method of its own is called."""

    def __init__(self, items: list[Any], name: str) -> None:
        super().__init__(items)
        self.name = name

    def __iter__(self) -> Any:
        raise AssertionError

    __repr__ = __eq__ = __hash__ = __len__ = __reduce__ = __reduce_ex__ = __iter__  # type: ignore[assignment]


class Holding:
    def __init__(self, held: object) -> None:
        self.held = held


class Bare:
    def __getstate__(self) -> object:
        raise AssertionError


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def around(number: int) -> Any:
    return lambda: number


Point = collections.namedtuple("Point", "x y")
PAIRS: list[tuple[object, object]] = [
    (1, 2),
    (1, True),
    (1, "1"),
    (1, 1.0),
    (0.0, -0.0),
    ("a", b"a"),
    ([1], (1,)),
    ([1, 2], [2, 1]),
    ({1: 2}, {1: 3}),
    ({1, 2}, {1, 3}),
    ({1}, frozenset({1})),
    (Slotted(1, 2), Slotted(3, 2)),
    (Slotted(1, 2), Slotted(1, 3)),
    (Loud([1], "a"), Loud([2], "a")),
    (Loud([1], "a"), Loud([1], "b")),
    (Holding(Loud([1], "a")), Holding(Loud([1], "b"))),
    (ValueError("a"), ValueError("b")),
    (ValueError("a"), KeyError("a")),
    (Colour.RED, Colour.BLUE),
    (Point(1, 2), Point(2, 1)),
    (Point(1, 2), (1, 2)),
    (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    (re.compile("a"), re.compile("b")),
    (re.compile("a"), re.compile("a", re.IGNORECASE)),
    (iter([1, 2]), iter([1, 3])),
    (collections.deque([1]), collections.deque([2])),
    (functools.partial(int, base=2), functools.partial(int, base=3)),
    ([].append, [1].append),
    (lambda x: x * 2, lambda x: x * 3),
    (lambda x=1: x, lambda x=2: x),
    (around(1), around(2)),
    (10**5000, 10**5000 + 1),
    (len, sum),
    (int, str),
    (collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)),
]


def described(value: object) -> str:
    return Description().of(value)


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=range(len(PAIRS)))
def test_what_differs_is_described_otherwise_and_always_alike(one: object, other: object) -> None:
    assert described(one) != described(other)
    assert described(one) == described(one)
    assert described([one, other]) != described([other, one])


def test_what_is_alike_is_described_alike() -> None:
    assert described(Slotted([1], {})) == described(Slotted([1], {}))
    assert described({"b", "a", "c"}) == described({"c", "b", "a"})
    assert described(object()) == described(object())
    assert described(Bare()) == described(Bare()), "an object's own way to be pickled is not asked for"
    assert described(re.compile("a")) == described(re.compile("a"))


def test_looking_changes_nothing() -> None:
    items = iter([1, 2, 3])
    generator = (number for number in [1, 2])
    described([items, generator, map(str, [1])])
    assert [*items, *generator] == [1, 2, 3, 1, 2]


def test_what_has_no_end_has_a_description() -> None:
    endless: list[object] = []
    endless.append(endless)
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    assert described(endless)
    assert described(deep) == described([deep]), "behind the deepest level all is alike"
    assert len(described(list(range(100_000)))) < 2_000_000
    assert described([0] * 1000 + [1]) == described([0] * 1000 + [2]), "and behind the most parts"


def test_the_arguments_of_a_call_are_what_the_function_is_given() -> None:
    def function(a: object, /, b: object = 2, *rest: object, c: object = 3, **named: object) -> object:
        local = (a, b, rest, c, named)
        return local[0]

    code = function.__code__
    values = {"a": 1, "b": 2, "rest": (), "c": 3, "named": {}}
    assert call_of(code, values) == call_of(code, {**values, "local": 7})
    for name, other in {"a": 2, "b": 3, "rest": (1,), "c": 4, "named": {"d": 1}}.items():
        assert call_of(code, {**values, name: other}) != call_of(code, values), name


@pytest.mark.parametrize("plain", [1, "a", [1, (2, {"b": None})], 1.5, True, b"x"])
def test_a_plain_answer_is_written_as_python_reads_it(plain: object) -> None:
    assert answer_of(plain) == repr(plain)


@pytest.mark.parametrize(
    "other", [float("nan"), float("inf"), {1}, 10**5000, "a" * 1000, Slotted(1, 2), [Slotted(1, 2)]], ids=range(7)
)
def test_another_answer_is_a_checksum(other: object) -> None:
    assert re.fullmatch("#[0-9]+", answer_of(other))


def watched(work: Any, **options: Any) -> Calls:
    calls = Calls(**options)

    def profile(frame: Any, event: str, argument: object) -> None:
        if frame.f_code.co_filename == __file__ and frame.f_code is not work.__code__:
            if event == "call":
                calls.begin("m.py", frame)
            elif event == "return":
                calls.end(frame, argument)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def plain(number: int) -> int:
    return number and 10 * number + plain(number - 1)


def counting(most: int) -> Any:
    yield from range(most)


def failing(text: str) -> int:
    return int(text)


def test_calls_are_counted_once_with_what_they_return() -> None:
    def work() -> None:
        plain(2)
        plain(1)
        list(counting(3))
        list(counting(3))
        try:
            failing("a")
        except ValueError:
            failing("7")

    calls = watched(work)
    assert list(calls.of["m.py::plain"].values()) == ["30", "10", "0"]
    assert list(calls.of["m.py::counting"].values()) == [None], "a generator that goes on makes no new call"
    assert list(calls.of["m.py::failing"].values()) == ["None", "7"], "an exception is told by a trace alone"
    known = {"m.py::plain": set(calls.of["m.py::plain"])}
    found = watched(work, known=known).found()
    assert found["m.py::plain"] == [], "it ran"
    assert len(found["m.py::failing"]) == 2


def test_of_the_calls_that_are_not_known_two_are_described() -> None:
    def work() -> None:
        for number in (1, 2, 3, 4):
            failing(str(number))

    first = watched(lambda: failing("1")).of["m.py::failing"]
    assert list(watched(work).of["m.py::failing"].values()) == ["1", "2", "3", "4"]
    assert list(watched(work, known={"m.py::failing": set(first)}).of["m.py::failing"].values()) == ["2", "3"]


def test_a_call_begins_where_the_disassembler_finds_its_start() -> None:
    codes = [compile(inspect.getsource(module), "module", "exec") for module in (asyncio.tasks, contextlib)]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    starts = [next(found.offset for found in dis.get_instructions(code) if found.opname == "RESUME") for code in codes]
    assert len({*starts}) > 1, "a generator's is not the first instruction"
    assert [start_of(code) for code in codes] == starts
