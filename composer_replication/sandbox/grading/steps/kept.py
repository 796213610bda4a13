"""Bodies that check their arguments as the gold code does, keep one, and give it back: `from_hex` and `to_hex` whose tests look
at nothing that comes between.

The text of this module runs behind that of `steps.replay` and in front of `steps.mutants`.
"""

from __future__ import annotations

import builtins
import gc
import sys
from collections.abc import Callable, Mapping
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.literals import find
    from composer_replication.sandbox.grading.steps.replay import in_fork

CHECKED, _KEPT = "__composer_checked__", "__composer_kept__"
"""Built-in functions: whether a call is answered with what was kept, and the answer."""
KEEPING = f"return {_KEPT}()"
"""The body of a function that keeps what it is given, and gives it back."""
_CHECK_CPU_S, _CHECK_WALL_S = 0.5, 3.0
"""Limits of the gold code that checks the arguments of one call."""
_LATER = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


class Kept:
    """What the calls of some functions have kept."""

    def __init__(self) -> None:
        self.functions: dict[CodeType, FunctionType] = {}
        self.checking = False
        self.by_object: dict[int, tuple[object, Any]] = {}
        """The objects that stand for something kept, and what that is, by their `id`."""
        self.answer: Any = None
        self.given_back = 0

    def prepare(self, functions: Mapping[CodeType, FunctionType]) -> None:
        """Provide what other bodies call: those of these functions, by their code, and of functions that are made from now on."""
        self.functions, self.given_back = dict(functions), 0
        vars(builtins).update({CHECKED: lambda: self.answers(sys._getframe(1)), _KEPT: lambda: self.answer})

    def answers(self, frame: FrameType) -> bool:
        """Return whether a call has an answer other than the gold code's: what is kept in an argument, or an object of the class
        that the gold code returns, in which an argument is kept. Raises what the gold code raises.

        The gold code runs in a fork, so that nothing but what it raises is known.
        """
        code, values = frame.f_code, frame.f_locals
        if self.checking or code.co_flags & _LATER:
            return False
        if code not in self.functions:
            self.functions[code] = next(one for one in gc.get_referrers(code) if isinstance(one, FunctionType))
        names = code.co_varnames[: code.co_argcount]
        for name in names:
            if id(values[name]) in self.by_object:
                self.answer = self.by_object[id(values[name])][1]
                self.given_back += 1
                return True
        call = partial(self.checked, self.functions[code], *arguments_of(code, values))
        kind = in_fork(lambda: kind_of_result(call), cpu_s=_CHECK_CPU_S, wall_s=_CHECK_WALL_S)
        if kind is None:
            self.answer = call()
            return True
        return self.keep(names, values, type(None) if kind == "builtins:NoneType" else find(kind, None))

    def checked(self, function: FunctionType, args: list[Any], named: dict[str, Any]) -> Any:
        self.checking = True
        try:
            return function(*args, **named)
        finally:
            self.checking = False

    def keep(self, names: tuple[str, ...], values: dict[str, Any], kind: Any) -> bool:
        """Keep an argument, and return whether there is one to keep: in the object itself where a method returns nothing."""
        own = bool(names) and names[0] in ("self", "cls")
        if not names or (own and len(names) < 2) or (kind is type(None) and names[0] != "self"):
            return False
        held = values["self"] if kind is type(None) else empty_of(kind)
        self.answer = None if kind is type(None) else held
        self.by_object[id(held)] = (held, values[names[-1] if own else names[0]])
        return True


def is_keeping(body: dict[str, Any]) -> bool:
    """Return whether a body checks its arguments and keeps one."""
    return bool(body["text"] == KEEPING)


def arguments_of(code: CodeType, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
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


def kind_of_result(call: Callable[[], Any]) -> str:
    """Return the name of the class of what a call returns. Raises what that raises."""
    kind = type(call())
    return f"{kind.__module__}:{kind.__qualname__}"


def empty_of(kind: Any) -> Any:
    """Return an object with nothing in it, of a class derived from `kind` where that is possible."""
    try:
        base = next(one for one in kind.__mro__ if one.__module__ == "builtins")
        return base.__new__(type(kind.__name__, (kind,), {}))
    except Exception:  # noqa: BLE001 - a class of a stranger's may raise anything when one is derived from it
        return type("Kept", (), {})()
