"""Calls of the functions under test, described so that two alike can be told to be alike.

The text of this module runs inside a sandbox, in front of that of `steps.replay`. Only code that is trusted is watched.
"""

from __future__ import annotations

import collections
import dis
import itertools
import math
import re
import types
import zlib
from collections.abc import Callable, Container, Iterable, Mapping
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FrameType
from typing import Any, TypeAlias

_MOST_PARTS = 30
"""Parts of one argument of a call that are described. Calls that differ only behind these are taken for alike."""
_MOST_LEVELS = 20
"""Levels of values in values that are described."""
_MOST_CALLS, _MOST_NEW_CALLS = 6, 2
"""Calls of one function that are described of one program, its first ones (a parser makes thousands), until so many are found
that are not known."""
_LONGEST_ANSWER = 120
"""Characters of an answer that is kept as it is written; longer ones, and objects, by a checksum."""
KnownCalls: TypeAlias = "Mapping[str, set[int]]"
"""Calls by the function's `path::name`."""
_ATOMS = frozenset({float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented)})
_NAMED = (type, types.ModuleType, types.BuiltinFunctionType)
_WHOLE: dict[type, Callable[[Any], str]] = {
    int: hex,
    float: float.__repr__,
    str: str.__repr__,
    bytes: bytes.__repr__,
    bytearray: bytearray.__repr__,
    re.Pattern: lambda pattern: f"{pattern.pattern!r} {pattern.flags}",
}
_ORDERED = (list, tuple, collections.deque)
_PICKLING = (
    "__getattr__",
    "__getattribute__",
    "__reduce_ex__",
    "__reduce__",
    "__getstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
)
_RESUME = dis.opmap["RESUME"]
_READERS = frozenset({"super", "locals", "vars", "eval", "exec", "sys", "inspect", "currentframe", "_getframe", "stack"})
_READS_SELF: dict[CodeType, bool] = {}
_LONGEST_NUMBER = 2000
"""Bits of an integer that is kept as an answer: Python writes no number of many thousand digits."""


class Description:
    """Writes values as text: by class, content and attributes, sets in the order of their items' texts. Calls no method that a
    class of the project defines."""

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
        if isinstance(value, types.ModuleType):
            return [str(getattr_static(value, "__name__"))]
        owner = value.__self__ if isinstance(value, types.BuiltinFunctionType) else None
        return [str(value.__qualname__), *([self.of(owner)] if owner is not None else [])]

    def function(self, value: Any) -> list[str]:
        """Describe a function of Python by its name, instructions, defaults, and what it holds of the functions around it."""
        code = value.__code__
        constants = [constant for constant in code.co_consts if type(constant) in _ATOMS or type(constant) is int]
        cells = [self.cell(cell) for cell in value.__closure__ or ()]
        held = (code.co_code, code.co_names, constants, value.__defaults__, value.__kwdefaults__)
        return [f"{value.__module__}.{value.__qualname__}", *map(self.of, held), *cells]

    def cell(self, cell: types.CellType) -> str:
        try:
            return self.of(cell.cell_contents)
        except ValueError:  # nothing is in it yet
            return ""

    def method(self, value: Any) -> list[str]:
        return [self.of(value.__func__), self.of(value.__self__)]

    def whole(self, value: Any) -> list[str]:
        return [write(value) for kind, write in _WHOLE.items() if isinstance(value, kind)]

    def entries(self, value: Any) -> list[str]:
        return [f"{self.of(key)}:{self.of(item)}" for key, item in self.first(dict.items(value))]

    def items(self, value: Any) -> list[str]:
        base: Any = next(base for base in _ORDERED if isinstance(value, base))
        return [self.of(item) for item in self.first(base.__iter__(value))]

    def first(self, items: Iterable[Any]) -> Iterable[Any]:
        """Return those that there is room for, and one more."""
        return itertools.islice(items, max(self.left, 0) + 1)

    def members(self, value: Any) -> list[str]:
        base: Any = set if isinstance(value, set) else frozenset
        if base.__len__(value) > self.left:  # the first of them are others with other hashes
            return [f"{base.__len__(value)} members"]
        return sorted([self.of(item) for item in base.__iter__(value)])

    def arguments(self, value: Any) -> list[str]:
        return [self.of(getattr_static(value, "args"))]

    def attributes(self, value: Any) -> list[str]:
        there = getattr_static(value, "__dict__") if type(value).__dictoffset__ else None
        held = dict(there) if isinstance(there, dict) else {}
        for name in _SLOTS[type(value)]:
            held.setdefault(name, getattr_static(value, name))
        return [f"{name}={self.of(item)}" for name, item in sorted(held.items(), key=_name_of)]

    def reduced(self, value: Any) -> list[str]:
        """Describe an object without attributes as it would be pickled, where that asks no method of the project's."""
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
    if issubclass(kind, types.FunctionType):
        return name, (Description.function,)
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


def _name_of(pair: tuple[Any, Any]) -> str:
    return str(pair[0]) if type(pair[0]) is str else ""


def getattr_static(value: Any, name: str) -> Any:
    """Return an attribute by the object's own storage; None where it has none of that name."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def checksum(text: str) -> int:
    """Return 32 bits of a text. Two calls in four billion are taken for one: the rewards of tasks become no weaker by it."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def call_of(code: CodeType, values: dict[str, Any], *, owner: bool | None = None) -> int:
    """Return the checksum of a call's arguments.

    Args:
        values: the local variables before the first line of the function.
        owner: whether `self` is one of them. By default it is where the code reads it: an answer that does not depend on it is
            known by heart for all objects.
    """
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    names = code.co_varnames[:count]
    if names[:1] == ("self",) and not (reads_self(code) if owner is None else owner):
        names = names[1:]
    try:
        return checksum("\n".join(Description().of(values[name]) for name in names if name in values))
    except Exception:  # noqa: BLE001 - near the limit of recursion, or an odd object: such calls are taken for alike
        return -1


def is_known(code: CodeType, values: dict[str, Any], known: Container[int]) -> bool:
    """Return whether a call is known, where the code need not be that of which the calls are known."""
    has_owner = code.co_argcount > 0 and code.co_varnames[0] == "self"
    return any(call_of(code, values, owner=owner) in known for owner in ((True, False) if has_owner else (True,)))


def reads_self(code: CodeType) -> bool:
    """Return whether a method's code may read its `self`, which `super` and `locals` do without naming it."""
    if code not in _READS_SELF:
        named = "self" in code.co_cellvars or not _READERS.isdisjoint(code.co_names)
        _READS_SELF[code] = named or any(_is_self(one.argval) for one in dis.get_instructions(code))
    return _READS_SELF[code]


def _is_self(operand: Any) -> bool:
    """Return whether an instruction's operand is `self`, or two names of which one is."""
    return operand == "self" if isinstance(operand, str) else isinstance(operand, tuple) and "self" in operand


def answer_of(value: Any) -> str:
    """Return what a function returned: as Python writes it where that is short and plain, otherwise by a checksum."""
    try:
        text = repr(value) if is_plain(value) else ""
        return text if 0 < len(text) <= _LONGEST_ANSWER else f"#{checksum(Description().of(value))}"
    except Exception:  # noqa: BLE001 - as in `call_of`
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
    return max(2 * code.co_code[::2].find(_RESUME), 0)


class Calls:
    """Collects the different calls of each function that are not `known`, and how they end: with what `answer_of` writes, or
    `!module:name` of an exception. None stands for an end that is not known, such as that of a generator."""

    def __init__(self, most: int = _MOST_CALLS, *, known: KnownCalls | None = None) -> None:
        self.most, self.known = most, known or {}
        self.most_new = most if known is None else _MOST_NEW_CALLS
        self.described: dict[str, int] = {}
        """Calls of each function that were described, equal ones as well."""
        self.of: dict[str, dict[int, str | None]] = {}
        self.step = 0
        """Number of the step that is being done."""
        self.steps: dict[str, set[int]] = {}
        """Steps for which each function runs."""
        self.outermost: dict[int, str] = {}
        """The first function that runs for each step: the one that the step calls."""
        self.starts: dict[CodeType, int] = {}
        self.running: dict[int, tuple[dict[int, str | None], int]] = {}
        """By the identity of their frames, calls whose end is not known yet."""
        self.raising: dict[int, str] = {}
        """By the identity of frames, the exceptions that have just come up in them."""

    def begin(self, path: str, frame: FrameType) -> None:
        code = frame.f_code
        if code not in self.starts:
            self.starts[code] = start_of(code)
        if frame.f_lasti > self.starts[code]:
            return
        function = f"{path}::{code.co_qualname}"
        self.steps.setdefault(function, set()).add(self.step)
        self.outermost.setdefault(self.step, function)
        found = self.of.setdefault(function, {})
        self.running.pop(id(frame), None)
        count = self.described.get(function, 0)
        if count < self.most and len(found) < self.most_new:
            self.described[function] = count + 1
            call = call_of(code, frame.f_locals)
            if call in self.known.get(function, ()):  # described as it was there: the code is the same
                return
            if found.setdefault(call, None) is None and not code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
                self.running[id(frame)] = found, call

    def raised(self, frame: FrameType, error: type[BaseException]) -> None:
        self.raising[id(frame)] = f"!{error.__module__}:{error.__qualname__}"

    def end(self, frame: FrameType, result: Any) -> None:
        """Note how a call ends. A coroutine that waits ends several times, and the last is its own."""
        raised = self.raising.pop(id(frame), None)
        begun = self.running.get(id(frame)) if frame.f_code.co_flags & CO_COROUTINE else self.running.pop(id(frame), None)
        if begun is not None:
            found, call = begun
            found[call] = raised if raised is not None and result is None else answer_of(result)

    def found(self) -> dict[str, list[tuple[int, str | None]]]:
        """Return the calls of each function that ran, by `path::name`."""
        return {function: list(calls.items()) for function, calls in sorted(self.of.items())}
