"""Values written down and read back, and when two of them are the same answer."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import json
import operator
from collections import Counter, OrderedDict, namedtuple
from dataclasses import dataclass

import pytest

from composer_replication.sandbox.grading.literals import Unwritable, decode, encode_argument, encode_result, find, same

ARGUMENTS = [
    None,
    True,
    0,
    -(1 << 200),
    "two\nlines é \ud800",
    1.5,
    float("inf"),
    2 - 3j,
    b"\x00\xff",
    bytearray(b"ab"),
    [1, [2, (3,)], {}],
    {"a": [1], 2: {3, 4}, (5,): None},
    frozenset({"x"}),
    range(1, 9, 2),
    slice(None, 3),
    datetime.date(2026, 1, 2),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
    datetime.time(1, 2),
    datetime.timedelta(-1, 2, 3),
    decimal.Decimal("1.10"),
    fractions.Fraction(1, 3),
    len,
    operator.add,
    Counter,
    str.upper,
]


def no_object(_value):
    return None


def through_json(written):
    return json.loads(json.dumps(written))


@pytest.mark.parametrize("value", ARGUMENTS, ids=repr)
def test_an_argument_comes_back_as_it_was(value):
    back = decode(through_json(encode_argument(value, no_object)))
    assert (type(back), back) == (type(value), value)


class Point(namedtuple("Point", "x y")):
    pass


class Colour(enum.IntEnum):
    RED = 3


@dataclass
class Plain:
    x: int


class Liar(int):
    def __int__(self):
        return 7

    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    "value", [Plain(1), Point(1, 2), Colour.RED, OrderedDict(), lambda: 1, object(), iter([1]), NotImplemented]
)
def test_an_argument_that_would_come_back_as_another_is_not_written(value):
    with pytest.raises(Unwritable):
        encode_argument(value, no_object)


def test_an_object_of_the_project_is_written_as_it_was_made():
    def made(value):
        return [f"{__name__}:Plain", [4], {}] if isinstance(value, Plain) else None

    assert encode_argument([Plain(4)], made) == ["list", [["made", f"{__name__}:Plain", [4], {}]]]
    assert decode(["made", "fractions:Fraction", [1, 2], {}]) == fractions.Fraction(1, 2)


@pytest.mark.parametrize(
    ("value", "like"),
    [
        (Point(1, 2), (1, 2)),
        (Colour.RED, 3),
        (OrderedDict(a=1), {"a": 1}),
        (Counter("aab"), {"a": 2, "b": 1}),
        ({1: 2}.keys(), iter([1])),
        ((n for n in (1, 2)), iter((1, 2))),
        (Liar(5), 5),
    ],
)
def test_a_result_is_written_as_what_it_equals(value, like):
    assert encode_result(value) == encode_result(like)


@pytest.mark.parametrize("value", ["x" * 5000, list(range(500)), [object()], 1 << 9000, datetime.datetime.now(datetime.UTC)])
def test_what_is_too_large_or_strange_is_not_written(value):
    with pytest.raises(Unwritable):
        encode_result(value)


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1, True),
        (2, 2.0),
        (0.1 + 0.2, 0.3),
        (0.1 + 0.2 - 0.3, 0.0),
        (0.0, 0.1 + 0.2 - 0.3),
        (float("nan"), float("nan")),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, 2}, frozenset({2, 1})),
        (iter([1, 2]), [1, 2]),
        (iter([1, 2]), (1.0, 2)),
        ([{"a": (1, 2.0)}], [{"a": (1, 2)}]),
    ],
)
def test_equal_answers(expected, got):
    assert same(through_json(encode_result(expected)), through_json(encode_result(got)))


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1, 2),
        (1, "1"),
        (None, 0),
        (None, False),
        ("a", b"a"),
        ([1, 2], (1, 2)),
        ([1], iter([1])),
        (0.3, 0.3001),
        (1e-12, 0.0),
        (1e-12, 1.1e-12),
        (float("inf"), 1.0),
        (1.5, 10**309),
        (1 << 60, (1 << 60) + 1),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": 1, "b": 2}),
        ({1}, {1, 2}),
        (iter([1, 2]), [2, 1]),
        (decimal.Decimal(1), decimal.Decimal(2)),
        (float("nan"), 1.0),
        ("float", 1.0),
    ],
)
def test_other_answers(expected, got):
    assert not same(through_json(encode_result(expected)), through_json(encode_result(got)))


def test_a_long_forged_answer_is_not_searched():
    """Each of the expected items would be looked for in all of it."""

    class Long(list):
        def __iter__(self):
            raise AssertionError

    assert not same(["set", [1, 2]], ["set", Long([1, 2, 1])])


def test_names_are_found_through_descriptors():
    assert find("fractions:Fraction.from_float") is fractions.Fraction.__dict__["from_float"].__func__
    assert find("fractions:Fraction.numerator") is fractions.Fraction.__dict__["numerator"].fget
    with pytest.raises(AttributeError):
        find("fractions:Nothing")
    assert find("no.such.module:x", None) is None
