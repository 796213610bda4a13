"""Values written down and read back, and when two of them are the same answer."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import itertools
import json
import operator
from collections import Counter, OrderedDict, namedtuple
from dataclasses import dataclass

import pytest

from composer_replication.sandbox.grading.literals import (
    OPAQUE,
    Unwritable,
    decode,
    differs,
    encode_argument,
    encode_items,
    encode_result,
    find,
    same,
)

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


def test_what_is_known_by_another_name_is_written_by_it_and_read_by_it():
    def known(value):
        return ["step", 4] if isinstance(value, Plain) else None

    written = encode_argument([Plain(4), {"a": (Plain(4),)}], known)
    assert written == ["list", [["step", 4], ["dict", [["a", ["tuple", [["step", 4]]]]]]]]
    assert decode(through_json(written), lambda other: other) == [["step", 4], {"a": (["step", 4],)}]
    with pytest.raises(ValueError, match="written as step"):
        decode(["step", 4])


@pytest.mark.parametrize(
    ("value", "like"),
    [
        (Point(1, 2), (1, 2)),
        (Colour.RED, 3),
        (OrderedDict(a=1), {"a": 1}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (Liar(5), 5),
    ],
)
def test_a_result_is_written_as_what_it_equals(value, like):
    assert encode_result(value) == encode_result(like)


NOON, EAST = datetime.datetime(2026, 3, 1, 12), datetime.timezone(datetime.timedelta(hours=2, minutes=30))


@pytest.mark.parametrize(
    "moment",
    [NOON, NOON.time(), datetime.datetime.min, datetime.datetime.max, datetime.time()],
    ids=["", "time", "first", "last", "0"],
)
def test_a_moment_is_written_as_what_it_equals_in_any_zone(moment):
    utc = encode_result(moment.replace(tzinfo=datetime.UTC))
    assert utc[0] == "moment"
    assert utc != encode_result(moment)
    assert utc != encode_result(moment.replace(tzinfo=EAST))
    assert utc == through_json(utc)


def test_the_same_moment_elsewhere_is_written_alike():
    assert encode_result(NOON.replace(tzinfo=datetime.UTC).astimezone(EAST)) == encode_result(NOON.replace(tzinfo=datetime.UTC))
    later = datetime.time(14, 30, tzinfo=EAST)
    assert later == datetime.time(12, tzinfo=datetime.UTC)
    assert encode_result(later) == encode_result(datetime.time(12, tzinfo=datetime.UTC))


class Silent(datetime.tzinfo):
    """Says nothing of its distance from UTC: the base class raises."""


def test_a_moment_of_an_unknown_zone_is_opaque():
    assert encode_result(NOON.replace(tzinfo=Silent())) == OPAQUE


def test_a_zone_is_no_part_of_an_argument():
    """It may be an object of the project's."""
    with pytest.raises(Unwritable):
        encode_argument(NOON.replace(tzinfo=datetime.UTC), no_object)


@pytest.mark.parametrize("value", ["x" * 5000, list(range(500)), [object()], 1 << 9000])
def test_what_is_too_large_or_strange_is_opaque(value):
    assert encode_result(value) in (OPAQUE, ["list", [OPAQUE]])


def test_iterators_are_read_only_where_that_is_asked():
    items = iter([1, object(), 2])
    assert encode_result(items) == OPAQUE
    assert encode_items(items) == ["iterator", [1, OPAQUE, 2]]
    assert encode_items(itertools.count()) == ["iterator", list(range(50))]
    assert encode_result({1: 2}.keys()) == ["iterator", [1]]


def written(value):
    return through_json(encode_items(value) if hasattr(value, "__next__") else encode_result(value))


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
    assert same(written(expected), written(got))


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1, 2),
        (1, "1"),
        (None, 0),
        (None, False),
        ("a", b"a"),
        ([1, 2], (1, 2)),
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
    assert not same(written(expected), written(got))


def test_a_long_forged_answer_is_not_searched():
    """Each of the expected items would be looked for in all of it."""

    class Long(list):
        def __iter__(self):
            raise AssertionError

    assert not same(["set", [1, 2]], ["set", Long([1, 2, 1])])


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (["list", [["opaque"], 1]], ["list", [1, 1]]),
        (["set", [["opaque"], 1]], ["set", [1, 2]]),
        (["dict", [["a", ["opaque"]]]], ["dict", [["a", 0]]]),
        (["opaque"], ["list", []]),
    ],
)
def test_anything_is_right_where_the_gold_code_gives_no_data(expected, got):
    assert same(expected, got)
    assert not same(["list", [expected, 1]], ["list", [got, 2]])


RAISED = ["raises", ["KeyError", "LookupError", "Exception"]]


@pytest.mark.parametrize(
    ("answers", "wrong"),
    [
        ([["returns", 1], RAISED], False),
        ([["returns", True], ["raises", ["Mine", *RAISED[1]]]], False),
        ([["returns", 1], ["returns", 1]], True),
        ([["returns", 2], RAISED], True),
        ([["returns", 1], ["raises", [*RAISED[1], "KeyError"]]], True),
        ([["returns", 1], ["lost"]], True),
        ([["returns", 1]], True),
        (None, True),
        ([None, RAISED], True),
        ([[], RAISED], True),
        ([{}, RAISED], True),
        ([["returns"], RAISED], True),
        (["returns", "raises"], True),
    ],
)
def test_answers_of_any_shape_are_compared(answers, wrong):
    assert differs([["returns", 1], RAISED], answers) is wrong
    assert differs([None, None], [["lost"], "anything"]) is False


def test_names_are_found_through_descriptors():
    assert find("fractions:Fraction.from_float") is fractions.Fraction.__dict__["from_float"].__func__
    assert find("fractions:Fraction.numerator") is fractions.Fraction.__dict__["numerator"].fget
    with pytest.raises(AttributeError):
        find("fractions:Nothing")
    assert find("no.such.module:x", None) is None


@pytest.mark.parametrize(("expected", "got"), [(OPAQUE, None), (["list", [OPAQUE, 1]], ["list", [None, 1]])])
def test_nothing_is_not_something(expected, got):
    assert not same(expected, got)


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: object
    note: str = dataclasses.field(default="", compare=False)
    _private: int = 0


@dataclasses.dataclass
class Judged:
    x: int

    def __eq__(self, other):
        return True

    __hash__ = None


def test_a_record_is_what_its_generated_comparison_looks_at():
    assert encode_result([Point(1, {2}, "a")]) == ["list", [["fields", [["x", 1], ["y", ["set", [2]]]]]]]
    assert encode_result(Judged(1)) == OPAQUE, "the class says itself what is equal"
    assert same(encode_result(Point(1, 0.5, "a")), encode_result(Point(1, 0.5 + 1e-12, "b")))
    assert same(encode_result(Point(1, 2, _private=3)), encode_result(Point(1, 2))), "other work may have no such field"
    assert not same(encode_result(Point(1, 2)), encode_result(Point(1, 3)))
    assert not same(encode_result(Point(1, 2)), encode_result((1, 2)))
    assert same(encode_result(Point(1, object())), encode_result(Point(1, 3)))


def test_a_record_of_attrs_is_too():
    attrs = pytest.importorskip("attrs")
    made = attrs.make_class("Made", {"x": attrs.field(), "note": attrs.field(eq=False)})
    assert encode_result(made(1, "a")) == ["fields", [["x", 1]]]
