"""Values written as JSON and read back, without running any code that they contain.

A scalar that JSON has (None, bool, int, str) stands for itself, everything else is a list that begins with its kind. The text of
this module also runs inside sandboxes, in front of the programs that call the code under test: it needs only the standard
library.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import fractions
import importlib
import inspect
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

_MOST_NODES = 400
_MOST_CHARACTERS = 4000
_MOST_BITS = 8192
MOST_ITEMS = 50
"""Read of an iterable."""
_CLOSE = 1e-9
"""Relative difference between equal floats: the order of summation must not matter. Near 0.0 it is absolute."""
_ZERO = 1e-14
"""Absolute difference that rounding leaves between numbers around 1: 5e-17 and 0.0 are the same answer."""

_BUILT_FROM: dict[type, Callable[[Any], list[Any]]] = {
    datetime.date: lambda v: [v.year, v.month, v.day],
    datetime.time: lambda v: [v.hour, v.minute, v.second, v.microsecond],
    datetime.datetime: lambda v: [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond],
    datetime.timedelta: lambda v: [v.days, v.seconds, v.microseconds],
    decimal.Decimal: lambda v: [str(v)],
    fractions.Fraction: lambda v: [v.numerator, v.denominator],
    range: lambda v: [v.start, v.stop, v.step],
    slice: lambda v: [v.start, v.stop, v.step],
}
"""Types whose values are their constructor's arguments; with a time zone they are moments, and written as results only."""
_SINCE = datetime.datetime(1, 1, 1)
_CONTAINERS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset", dict: "dict"}

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class Unwritable(ValueError):  # noqa: N818 - says what the value is, not that something went wrong
    """The value cannot be written down."""


OPAQUE = ["opaque"]
"""Stands for a result, or a part of one, that is no plain data."""

Reference: TypeAlias = Callable[[Any], "list[Any] | None"]
"""Encodes a value that is known by another name than its contents; None for any other."""


class _Writer:
    """Encodes one value: exactly, as an argument, with a `reference`; as what it compares equal to, as a result, without one."""

    def __init__(self, reference: Reference | None) -> None:
        self.reference = reference
        self.nodes = 0

    def write(self, value: Any) -> Any:
        self.nodes += 1
        if self.nodes > _MOST_NODES:
            raise Unwritable("too large")
        if value is None or value is True or value is False:
            return value
        known = None if self.reference is None else self.reference(value)
        if known is not None:
            return known
        kind = _base_of(type(value)) if self.reference is None else type(value)
        written = self._scalar(kind, value)
        if written is None and kind in _CONTAINERS:
            written = self._container(kind, value)
        if written is None and self.reference is None:
            return self._compared(value)
        if written is None:
            target = name_of(value) if callable(value) else None
            written = None if target is None else ["named", target]
        if written is None:
            raise Unwritable(type(value).__name__)
        return written

    def _compared(self, value: Any) -> Any:
        """Encode an object by what it is compared by: the items of a view, the fields of a record; OPAQUE for any other."""
        if type(value) in _VIEWS:
            return ["iterator", [self.write(item) for item in value]]
        fields = _fields_of(type(value))
        return OPAQUE if fields is None else ["fields", [[name, self.write(getattr(value, name))] for name in fields]]

    def _scalar(self, kind: type, value: Any) -> Any:
        """Encode a scalar; None for anything else. The base type's own methods read the value, whatever a subclass says of
        itself."""
        if kind is int:
            if int.bit_length(value) > _MOST_BITS:
                raise Unwritable("too large")
            return int.__add__(value, 0)
        if kind is str:
            _check_length(str.__len__(value))
            return str.__str__(value)
        if kind is float:
            return ["float", float.__repr__(value)]
        if kind is complex:
            return ["complex", repr(value.real), repr(value.imag)]
        if kind in (bytes, bytearray):
            _check_length(len(value))
            return [kind.__name__, value.hex()]
        if kind in _BUILT_FROM:
            if kind in (datetime.datetime, datetime.time) and value.tzinfo is not None:
                return self._moment(kind, value)
            return ["built", f"{kind.__module__}:{kind.__qualname__}", _BUILT_FROM[kind](value)]
        return None

    def _moment(self, kind: type, value: Any) -> Any:
        """Encode a time of a zone by what it is compared by: the time without its distance from UTC."""
        try:
            offset = None if self.reference is not None else value.utcoffset()
        except Exception:  # noqa: BLE001 - a zone of the project's may raise anything
            offset = None
        if offset is None:
            raise Unwritable("time zone")
        fields = _BUILT_FROM[kind](value)
        plain = datetime.datetime(*fields) if kind is datetime.datetime else datetime.datetime(1, 1, 1, *fields)
        return ["moment", f"{kind.__module__}:{kind.__qualname__}", _BUILT_FROM[datetime.timedelta](plain - _SINCE - offset)]

    def _container(self, kind: type, value: Any) -> Any:
        name = _CONTAINERS[kind]
        if kind is dict:
            return [name, [[self.write(k), self.write(v)] for k, v in dict.items(value)]]
        items = [self.write(item) for item in kind.__iter__(value)]  # type: ignore[attr-defined]
        return [name, sorted(items, key=json.dumps) if kind in (set, frozenset) else items]


def name_of(value: Any) -> str | None:
    """Return `module:qualname` under which a function or class is found, also where a module gave a lambda its name."""
    owner = getattr(value, "__objclass__", value)  # a method of a built-in type has no module
    module, name = getattr(owner, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module not in sys.modules:
        return None
    if "<" in name:
        names = (given for given, held in vars(sys.modules[module]).items() if held is value)
        return next((f"{module}:{given}" for given in names), None)
    return f"{module}:{name}" if find(f"{module}:{name}", None) is value else None


def _base_of(kind: type) -> type:
    """Return the built-in type that an object of `kind` is compared as."""
    known = (int, str, float, complex, bytes, bytearray, *_BUILT_FROM, *_CONTAINERS)
    return next((base for base in kind.__mro__ if base in known), kind)


def _fields_of(kind: type) -> list[str] | None:
    """Return the public fields by which objects of a class made by `dataclasses` or attrs are equal; None where the class says
    itself what is equal, as any other does."""
    code = getattr(kind.__eq__, "__code__", None)
    if code is None or not code.co_filename.startswith("<"):
        return None
    if dataclasses.is_dataclass(kind):
        compared = [field.name for field in dataclasses.fields(kind) if field.compare]
    else:
        attributes = getattr(kind, "__attrs_attrs__", None)
        if not isinstance(attributes, tuple):
            return None
        compared = [field.name for field in attributes if field.eq]
    return [name for name in compared if not name.startswith("_")]


def _check_length(length: int) -> None:
    if length > _MOST_CHARACTERS:
        raise Unwritable("too large")


def encode_argument(value: Any, reference: Reference = lambda _: None) -> Any:
    """Encode `value` exactly, so that `decode` gives an equal one of the same types. Raises Unwritable."""
    return _Writer(reference).write(value)


def encode_result(value: Any) -> Any:
    """Encode what `value` compares equal to, or OPAQUE; raises what iterating over a subclass of a container raises.

    Iterators are not read: they are opaque.
    """
    try:
        return _Writer(None).write(value)
    except Unwritable:
        return OPAQUE


def encode_items(values: Iterable[Any]) -> Any:
    """Encode the first items of an iterable, which may be endless. Raises what iterating raises."""
    return ["iterator", [encode_result(item) for item in itertools.islice(values, MOST_ITEMS)]]


def find(target: str, default: Any = ...) -> Any:
    """Return the object that `module:qualname` names, a descriptor of a class unwrapped to its function. Raises ImportError or
    AttributeError."""
    module_name, _, qualname = target.partition(":")
    try:
        place: Any = importlib.import_module(module_name)
        for part in qualname.split("."):
            place = inspect.getattr_static(place, part) if isinstance(place, type) else getattr(place, part)
    except (ImportError, AttributeError):
        if default is ...:
            raise
        return default
    for attribute in ("__func__", "fget", "func"):
        if isinstance(place, classmethod | staticmethod | property) or type(place).__name__ == "cached_property":
            place = getattr(place, attribute, place)
    return place


def decode(written: Any, resolve: Callable[[list[Any]], Any] | None = None) -> Any:
    """Decode what `encode_argument` wrote, inside a sandbox. Raises what the constructors of standard types raise.

    Args:
        resolve: decodes what a `reference` encoded.
    """
    if not isinstance(written, list):
        return written
    kind, *rest = written
    match kind:
        case "list" | "tuple" | "set" | "frozenset":
            types = {name: of for of, name in _CONTAINERS.items()}
            return types[kind](decode(item, resolve) for item in rest[0])
        case "dict":
            return {decode(key, resolve): decode(value, resolve) for key, value in rest[0]}
        case "float":
            return float(rest[0])
        case "complex":
            return complex(float(rest[0]), float(rest[1]))
        case "bytes" | "bytearray":
            return bytes.fromhex(rest[0]) if kind == "bytes" else bytearray.fromhex(rest[0])
        case "built":
            return find(rest[0])(*rest[1])
        case "named":
            return find(rest[0])
    if resolve is None:
        raise ValueError(f"nothing is written as {kind}")
    return resolve(written)


def same(expected: Any, got: Any) -> bool:
    """Return whether two encoded results are equal under Python's `==`; nothing is decoded.

    Floats may differ by rounding, where an iterator is expected any sequence of the same items will do, and where something
    opaque is expected anything but None.
    """
    if expected == OPAQUE:
        return got is not None
    left, right = _number(expected), _number(got)
    if left is not None or right is not None:
        return left is not None and right is not None and _close(left, right)
    if not (isinstance(expected, list) and isinstance(got, list)):
        return type(expected) is type(got) and bool(expected == got)
    kind, other = expected[0], got[0]
    if kind == "iterator":
        return other in ("iterator", "list", "tuple") and _same_items(expected[1], got[1][:MOST_ITEMS])
    if kind in ("set", "frozenset"):
        return other in ("set", "frozenset") and _matched(expected[1], got[1])
    if kind != other:
        return False
    if kind in ("dict", "fields"):
        return _matched([["tuple", pair] for pair in expected[1]], [["tuple", pair] for pair in got[1]])
    return _same_items(expected[1], got[1]) if kind in ("list", "tuple") else bool(expected == got)


def _number(written: Any) -> int | float | None:
    """Return the number; a bool is one too: `True == 1`."""
    if isinstance(written, int):
        return written
    return float(written[1]) if isinstance(written, list) and written[0] == "float" else None


def _close(expected: int | float, got: int | float) -> bool:
    """Compare by the magnitude of what is expected, down to that of rounding, so that 0.0 does not stand for every small
    number."""
    if expected == got or (isinstance(expected, int) and isinstance(got, int)):
        return expected == got
    try:
        if math.isnan(expected) or math.isnan(got):
            return math.isnan(expected) and math.isnan(got)
        return math.isfinite(expected) and abs(got - expected) <= max(_CLOSE * (abs(expected) or 1.0), _ZERO)
    except OverflowError:  # an integer that no float can hold
        return False


def _same_items(expected: list[Any], got: list[Any]) -> bool:
    return len(expected) == len(got) and all(map(same, expected, got))


def _matched(expected: list[Any], got: list[Any]) -> bool:
    """Return whether the lists are equal in some order."""
    if len(expected) != len(got):
        return False
    left = list(got)
    for item in sorted(expected, key=lambda item: "opaque" in json.dumps(item)):  # those that match anything choose last
        index = next((n for n, other in enumerate(left) if same(item, other)), None)
        if index is None:
            return False
        del left[index]
    return True


def differs(expected: list[Any], answers: Any) -> bool:
    """Return whether one of the answers to a program's steps is not the expected one; where that is None nothing is compared.

    An answer is `["returns", result]` or `["raises", class names of the exception and its bases]`. The sandbox may have sent
    anything.
    """
    if not isinstance(answers, list) or len(answers) != len(expected):
        return True
    return not all(wanted is None or _is_right(wanted, got) for wanted, got in zip(expected, answers, strict=True))


def _is_right(wanted: Any, got: Any) -> bool:
    """Return whether an answer is the expected one. An exception is right with exactly the bases of the expected one, from itself
    on: it may be a subclass, but not of others too."""
    try:
        if got[0] != wanted[0]:
            return False
        if wanted[0] == "raises":
            return bool(got[1][-len(wanted[1]) :] == wanted[1])
        return same(wanted[1], got[1])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError):
        return False
