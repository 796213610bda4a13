"""Calls of the functions under test, described so that two alike can be told to be alike.

The text of this module runs inside a sandbox, in front of that of `steps.replay`. Only code that is trusted is watched.
"""

from __future__ import annotations

import collections
import dis
import math
import types
import zlib
from collections.abc import Callable, Mapping
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FrameType
from typing import Any, TypeAlias

_MOST_PARTS = 200
"""Parts of the arguments of one call that are described. Calls that differ only behind these are taken for alike."""
_MOST_LEVELS = 20
"""Levels of values in values that are described."""
_MOST_CALLS = 400
"""Different calls of one function that are kept of one program."""
_LONGEST_ANSWER = 300
"""Characters of an answer that is kept as it is written; longer ones, and objects, by a checksum."""
KnownCalls: TypeAlias = "Mapping[str, set[int]]"
"""Calls by the function's `path::name`."""
_ATOMS = frozenset({float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented)})
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_SUSPENDED = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_WHOLE: dict[type, Callable[[Any], str]] = {
    int: hex,
    float: float.__repr__,
    str: str.__repr__,
    bytes: bytes.__repr__,
    bytearray: bytearray.__repr__,
}
_ORDERED = (list, tuple, collections.deque)
_PICKLING = ("__reduce_ex__", "__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
_LONGEST_NUMBER = 2000
"""Bits of an integer that is kept as an answer: Python writes no number of many thousand digits."""


class Description:
    """Writes values as text: by class, content and attributes, sets in the order of their items' texts. Calls no method of the
    project's."""

    def __init__(self) -> None:
        self.left = _MOST_PARTS
        self.open: set[int] = set()

    def of(self, value: Any) -> str:
        self.left -= 1
        kind = type(value)
        if kind in _ATOMS:
            return repr(value)
        if self.left < 0 or len(self.open) > _MOST_LEVELS:
            return "..."
        if id(value) in self.open:
            return "^"
        self.open.add(id(value))
        try:
            name, parts = plan_of(kind)
            written = [part for describe in parts for part in describe(self, value)] or self.reduced(value)
            return f"{name}({','.join(written)})"
        finally:
            self.open.discard(id(value))

    def named(self, value: Any) -> list[str]:
        return [str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", getattr(value, "__name__", "")))]

    def method(self, value: Any) -> list[str]:
        return [value.__func__.__qualname__, self.of(value.__self__)]

    def whole(self, value: Any) -> list[str]:
        return [write(value) for kind, write in _WHOLE.items() if isinstance(value, kind)]

    def entries(self, value: Any) -> list[str]:
        return [f"{self.of(key)}:{self.of(item)}" for key, item in dict.items(value)]

    def items(self, value: Any) -> list[str]:
        base: Any = next(base for base in _ORDERED if isinstance(value, base))
        return [self.of(item) for item in base.__iter__(value)]

    def members(self, value: Any) -> list[str]:
        base: Any = set if isinstance(value, set) else frozenset
        return sorted([self.of(item) for item in base.__iter__(value)])

    def arguments(self, value: Any) -> list[str]:
        return [self.of(getattr_static(value, "args"))]

    def attributes(self, value: Any) -> list[str]:
        held = dict(getattr_static(value, "__dict__") or {})
        for name in _SLOTS[type(value)]:
            held.setdefault(name, getattr_static(value, name))
        return [f"{name}={self.of(item)}" for name, item in sorted(held.items(), key=str)]

    def reduced(self, value: Any) -> list[str]:
        """Describe an object of a class written in C as it would be pickled, where it can be."""
        if any(isinstance(getattr(type(value), name, None), types.FunctionType) for name in _PICKLING):
            return []
        try:
            made = value.__reduce_ex__(2)
        except Exception:  # noqa: BLE001 - what cannot be pickled raises what it likes, and is known by its class alone
            return []
        return [self.of(part) for part in made] if isinstance(made, tuple) else [str(made)]


Part: TypeAlias = "Callable[[Description, Any], list[str]]"
_PLANS: dict[type, tuple[str, tuple[Part, ...]]] = {}
_SLOTS: dict[type, tuple[str, ...]] = {}


def plan_of(kind: type) -> tuple[str, tuple[Part, ...]]:
    """Return the name of a class, and what is written of its objects."""
    plan = _PLANS.get(kind)
    if plan is None:
        plan = _PLANS[kind] = make_plan(kind)
    return plan


def make_plan(kind: type) -> tuple[str, tuple[Part, ...]]:
    """Do `plan_of` for a class that was not met before."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    if issubclass(kind, _NAMED):
        return name, (Description.named,)
    if issubclass(kind, types.MethodType):
        return name, (Description.method,)
    parts: list[Part] = []
    for bases, part in (
        (tuple(_WHOLE), Description.whole),
        ((dict,), Description.entries),
        (_ORDERED, Description.items),
        ((set, frozenset), Description.members),
        ((BaseException,), Description.arguments),
    ):
        if issubclass(kind, bases):
            parts.append(part)
    _SLOTS[kind] = slots_of(kind)
    return name, (*parts, Description.attributes) if kind.__dictoffset__ or _SLOTS[kind] else tuple(parts)


def slots_of(kind: type) -> tuple[str, ...]:
    """Return the names by which the objects of a class hold what its `__slots__` name."""
    found = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return tuple(found)


def getattr_static(value: Any, name: str) -> Any:
    """Return an attribute by the object's own storage; None where it has none of that name."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def checksum(text: str) -> int:
    """Return 32 bits of a text. Two calls in four billion are taken for one: the rewards of tasks become no weaker by it."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def call_of(code: CodeType, values: dict[str, Any]) -> int:
    """Return the checksum of a call's arguments.

    Args:
        values: the local variables before the first line of the function.
    """
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    described = Description()
    try:
        return checksum("\n".join(described.of(values[name]) for name in code.co_varnames[:count] if name in values))
    except RecursionError:  # the program itself is near the limit: such calls are taken for alike
        return 0


def answer_of(value: Any) -> str:
    """Return what a function returned: as Python writes it where that is short and plain, otherwise by a checksum."""
    try:
        text = repr(value) if is_plain(value) else ""
        return text if 0 < len(text) <= _LONGEST_ANSWER else f"#{checksum(Description().of(value))}"
    except RecursionError:
        return "#0"


def is_plain(value: Any) -> bool:
    """Return whether Python reads a value back from its `repr`."""
    kind = type(value)
    if kind in (list, tuple):
        return all(map(is_plain, value))
    if kind is dict:
        return all(is_plain(part) for pair in value.items() for part in pair)
    if kind is float:
        return math.isfinite(value)
    if kind is int:
        return int.bit_length(value) <= _LONGEST_NUMBER
    return kind in (bool, str, bytes, type(None))


def start_of(code: CodeType) -> int:
    """Return the offset of the instruction at which a call begins; a generator goes on at later ones."""
    return next((found.offset for found in dis.get_instructions(code) if found.opname == "RESUME"), 0)


class Calls:
    """Collects the different calls of each function, and what they return. None stands for an answer that is not known, such as
    that of a generator."""

    def __init__(self) -> None:
        self.of: dict[str, dict[int, str | None]] = {}
        self.step = 0
        """Number of the step that is being done."""
        self.steps: dict[str, set[int]] = {}
        """Steps for which each function runs."""
        self.starts: dict[CodeType, int] = {}
        self.running: list[tuple[dict[int, str | None], int] | None] = []

    def begin(self, path: str, frame: FrameType) -> None:
        code = frame.f_code
        if code not in self.starts:
            self.starts[code] = start_of(code)
        if frame.f_lasti > self.starts[code]:
            return
        function = f"{path}::{code.co_qualname}"
        self.steps.setdefault(function, set()).add(self.step)
        found = self.of.setdefault(function, {})
        call = call_of(code, frame.f_locals) if len(found) < _MOST_CALLS else None
        if call is not None:
            found.setdefault(call, None)
        if not code.co_flags & _SUSPENDED:
            self.running.append(None if call is None or found[call] is not None else (found, call))

    def end(self, frame: FrameType, result: Any) -> None:
        if not frame.f_code.co_flags & _SUSPENDED and self.running:
            begun = self.running.pop()
            if begun is not None:
                begun[0][begun[1]] = answer_of(result)

    def without(self, known: KnownCalls) -> dict[str, list[tuple[int, str | None]]]:
        """Return the calls of each function, by `path::name`, that are none of the known ones."""
        found = {}
        for function, calls in sorted(self.of.items()):
            there = known.get(function, set())
            found[function] = [(call, answer) for call, answer in calls.items() if call not in there]
        return found
