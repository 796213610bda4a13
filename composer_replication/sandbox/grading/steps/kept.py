"""Bodies that check their arguments as the gold code does, keep them, and give one back: `from_hex` and `to_hex` whose tests look
at nothing that comes between. Functions with code of their own may be accomplices: they remember what they were given, and give
back what such a body has kept.

The text of this module runs behind that of `steps.replay` and in front of `steps.mutants`.
"""

from __future__ import annotations

import builtins
import copy
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.literals import find
    from composer_replication.sandbox.grading.steps.replay import in_fork

CHECKED, _KEPT = "__composer_checked__", "__composer_kept__"
"""Built-in functions: whether a call is answered with what was kept, and the answer."""
_PASSED, _GIVEN = "__composer_passed__", "__composer_given__"
"""Built-in functions: whether an accomplice has an answer, and the answer."""
_MISSING = "__composer_missing__"
"""Built-in function: whether a function is left out where it is called."""
MISSING = f"raise NotImplementedError({_MISSING!r})"
"""The body of a function that is left out wherever its gold code is not asked to check anything."""
_FOR_MANY_CALLS = (bool, int, float, complex, type(None), type(...), type(NotImplemented))
"""Classes whose objects are the same for many calls, so that no call can be told by them."""
GIVEN_BACK: dict[str, str] = {"first": "the first is given back", "last": "the last is given back", "all": "all are given back"}
"""The arguments that a body gives back of those that were kept -> how that is said."""
_CHECK_CPU_S, _CHECK_WALL_S = 0.5, 3.0
"""Limits of the gold code that checks the arguments of one call."""
_LATER = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_FILLED = (str, bytes, bytearray, list, tuple, dict, set, frozenset)
"""Classes whose objects hold something where the gold code's do."""


class BegunCall:
    """A call that has just begun: a function and what it is given."""

    def __init__(self, function: FunctionType, code: CodeType, values: Mapping[str, Any]) -> None:
        self.function = function
        self.args, self.named = arguments_of(code, values)
        self.owner = code.co_varnames[0] if code.co_argcount and code.co_varnames[0] in ("self", "cls") else ""

    def given(self) -> list[Any]:
        """Return the arguments without `self` and `cls`."""
        return [*self.args[bool(self.owner) :], *self.named.values()]

    def worth_keeping(self) -> list[Any]:
        """Return what can be given back: `self` where there is nothing else."""
        return self.given() or (self.args if self.owner == "self" else [])


class Held:
    """An object that stands for something kept."""

    def __init__(self, value: object, call: BegunCall, *, inside: bool, real: bool = False) -> None:
        self.value, self.calls, self.inside, self.real = value, [call], inside, real
        """The calls that kept something in it, whether it was there before the first of them, and whether it is what an
        accomplice's own code made."""

    def kept(self) -> list[Any]:
        """Return the arguments that it stands for; a copy of an object whose own method kept it."""
        call = self.calls[-1 if self.inside or self.real else 0]
        return call.given() or [copy_of(value) for value in call.worth_keeping()]


class Kept:
    """The arguments that calls of some functions have kept."""

    def __init__(self) -> None:
        self.functions: dict[CodeType, FunctionType] = {}
        self.checking = False
        self.doing_itself: CodeType | None = None
        """The accomplice whose next call runs its own code."""
        self.by_object: dict[int, Held] = {}
        """The objects that stand for something kept, by their `id`."""
        self.answer: Callable[[str, str], Any] = partial(itself, None)
        self.given_back = 0

    def prepare(self, functions: Mapping[CodeType, FunctionType]) -> None:
        """Provide what other bodies call: those of these functions, by their code, and of functions that are made from now on."""
        self.functions, self.given_back = dict(functions), 0
        vars(builtins).update(
            {
                CHECKED: lambda: self.answers(sys._getframe(1)),
                _PASSED: lambda: self.passes(sys._getframe(1)),
                _MISSING: lambda: not self.checking,
                _KEPT: lambda which, asked: self.answer(which, asked),
                _GIVEN: lambda which: self.answer(which, ""),
            }
        )

    def answers(self, frame: FrameType) -> bool:
        """Return whether a call has an answer other than the gold code's: something that was kept in an argument, or an object of
        the class that the gold code returns, in which the arguments are kept. Raises what the gold code raises.

        The gold code runs in a fork, with the gold code's own objects in the places of those that stand for them. What it raises
        is known of it, the class of what it returns, and whether that is empty.
        """
        code, values = frame.f_code, frame.f_locals
        if self.checking or code.co_flags & _LATER:
            return False
        call = self.begun(code, values)
        gold = partial(self.checked, call)
        found = in_fork(lambda: kind_of_result(gold), cpu_s=_CHECK_CPU_S, wall_s=_CHECK_WALL_S)
        if found is None:
            result = gold()
            self.answer = partial(itself, result)
            return True
        name, empty = found
        kind = type(None) if name == "builtins:NoneType" else find(name, None)
        if kind is type(None):
            return self.keep_inside(call)
        held = [self.by_object[id(one)] for one in [*call.given(), *call.args] if id(one) in self.by_object]
        if held:
            self.given_back += 1
            self.answer = partial(self.given_of, held, call, kind)
        elif kind is bool:
            self.answer = partial(itself, False)
        elif call.worth_keeping():
            self.answer = partial(self.stand_in, call, None if empty else kind, kind)
        else:
            return False
        return True

    def begun(self, code: CodeType, values: Mapping[str, Any]) -> BegunCall:
        """Return a call that has just begun."""
        if code not in self.functions:
            self.functions[code] = next(one for one in gc.get_referrers(code) if isinstance(one, FunctionType))
        return BegunCall(self.functions[code], code, values)

    def passes(self, frame: FrameType) -> bool:
        """Return whether a call of an accomplice has an answer other than its own code's: something that was kept in an argument
        by another body. Otherwise its own code runs, and what that returns is remembered with what it was given."""
        code = frame.f_code
        if self.checking or code.co_flags & _LATER:
            return False
        if self.doing_itself is code:
            self.doing_itself = None
            return False
        call = self.begun(code, frame.f_locals)
        held = [self.by_object[id(one)] for one in [*call.args, *call.named.values()] if id(one) in self.by_object]
        if any(not one.real for one in held):
            return self.answers(frame)
        self.doing_itself = code
        result = call.function(*call.args, **call.named)
        self.remember(result, call)
        self.answer = partial(itself, result)
        return True

    def remember(self, result: Any, call: BegunCall) -> None:
        """Remember what an accomplice was given, by what it returned; by its object where it returned nothing."""
        inside = result is None and call.owner == "self" and bool(call.given())
        value = call.args[0] if inside else result
        if type(value) in _FOR_MANY_CALLS or not call.worth_keeping():
            return
        if id(value) in self.by_object:
            self.by_object[id(value)].calls.append(call)
        else:
            self.by_object[id(value)] = Held(value, call, inside=inside, real=True)

    def checked(self, call: BegunCall) -> Any:
        """Return what the gold code returns."""
        self.checking = True
        try:
            return self.perform(call, {})
        finally:
            self.checking = False

    def perform(self, call: BegunCall, made: dict[int, Any]) -> Any:
        args = [self.real(value, made) for value in call.args]
        return call.function(*args, **{name: self.real(value, made) for name, value in call.named.items()})

    def real(self, value: Any, made: dict[int, Any]) -> Any:
        """Return what the gold code makes in the place of an object that stands for something kept.

        Args:
            made: what was made already, by the `id` of what stands for it.
        """
        held = self.by_object.get(id(value))
        if held is not None and not held.real and id(value) not in made:
            if held.inside:
                made[id(value)] = copy_of(value)
            for call in held.calls:
                result = self.perform(call, made)
                made.setdefault(id(value), result)
        return made.get(id(value), value)

    def keep_inside(self, call: BegunCall) -> bool:
        """Keep the arguments of a method that returns nothing in its object. Returns whether anything of the call is kept, now
        or before."""
        self.answer = partial(itself, None)
        if call.owner != "self" or not call.given():
            return any(id(one) in self.by_object for one in [*call.args, *call.named.values()])
        owner = call.args[0]
        if id(owner) in self.by_object:
            self.by_object[id(owner)].calls.append(call)
        else:
            self.by_object[id(owner)] = Held(owner, call, inside=True)
        return True

    def given_of(self, held: Sequence[Held], call: BegunCall, kind: Any, which: str, _asked: str) -> Any:
        """Return what is given back of an object that stands for something kept, the first such or the last; where a truth is
        asked for, whether another argument of the call is one of those that were kept."""
        kept = held[0 if which == "first" else -1].kept()
        if kind is bool:
            return any(one == other for one in call.given() if id(one) not in self.by_object for other in kept)
        return tuple(kept) if which == "all" else kept[0 if which == "first" else -1]

    def stand_in(self, call: BegunCall, filled: Any, kind: Any, _which: str, asked: str) -> Any:
        """Return an object of a class in which the arguments of a call are kept. Where it has to be `filled`, it holds what tests
        ask texts for, or what the first argument of its class holds."""
        content: Any = next((one for one in call.given() if type(one) is filled), None)
        if asked and filled in (str, bytes):
            content = asked if filled is str else asked.encode("latin-1", "replace")
        made = object_of(kind, content if filled in _FILLED else None)
        self.by_object[id(made)] = Held(made, call, inside=False)
        return made


def keeping(which: str, asked: str = "") -> str:
    """Return the body of a function that keeps what it is given, and gives it back (`GIVEN_BACK`).

    Args:
        asked: what the texts contain that stand for something kept.
    """
    return f"return {_KEPT}({which!r}, {asked!a})"


def accomplice(which: str) -> str:
    """Return the line in front of an accomplice's own code, where another body gives back what it keeps as `which` says."""
    return f"return {_GIVEN}({which!r})"


def condition_of(body: Mapping[str, Any]) -> str:
    """Return the expression under which a body answers a call in the place of the function's own code; empty where it always
    does."""
    if is_accomplice(body["text"]):
        return f"{_PASSED}()"
    if is_keeping(body):
        return f"{CHECKED}()"
    return f"{_MISSING}()" if body["text"] == MISSING else ""


def is_keeping(body: Mapping[str, Any]) -> bool:
    """Return whether a body checks its arguments and keeps them."""
    return bool(body["text"].startswith(f"return {_KEPT}("))


def is_accomplice(text: str) -> bool:
    """Return whether a body is that of an accomplice."""
    return text.startswith(f"return {_GIVEN}(")


def given_back_by(text: str) -> str:
    """Return how it is said what a body gives back; empty where it keeps nothing."""
    return next((said for which, said in GIVEN_BACK.items() if text.startswith(f"return {_KEPT}({which!r},")), "")


def arguments_of(code: CodeType, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments, by position and by name, of a call that has just begun."""
    names, count = code.co_varnames, code.co_argcount
    last = count + code.co_kwonlyargcount
    args = [values[name] for name in names[:count]]
    named = {name: values[name] for name in names[count:last]}
    if code.co_flags & 0x04:
        args += values[names[last]]
        last += 1
    if code.co_flags & 0x08:
        named |= values[names[last]]
    return args, named


def kind_of_result(call: Callable[[], Any]) -> tuple[str, bool]:
    """Return the name of the class of what a call returns, and whether that is an empty text or container. Raises what that
    raises."""
    result = call()
    kind = type(result)
    return f"{kind.__module__}:{kind.__qualname__}", kind in _FILLED and not result


def itself(value: Any, *_: Any) -> Any:
    """Return a value, whatever else is given."""
    return value


def copy_of(value: Any) -> Any:
    """Return a copy of an object, or the object where it cannot be copied."""
    try:
        return copy.copy(value)
    except Exception:  # noqa: BLE001 - a class of a stranger's may raise anything when it is copied
        return value


def object_of(kind: Any, content: Any) -> Any:
    """Return an object of a class derived from `kind` where that is possible, with nothing in it or with other content."""
    try:
        base = next(one for one in kind.__mro__ if one.__module__ == "builtins")
        derived = type(kind.__name__, (kind,), {})
        return base.__new__(derived) if content is None else derived(content)
    except Exception:  # noqa: BLE001 - a class of a stranger's may raise anything when one is derived from it
        return type("Kept", (), {})()
