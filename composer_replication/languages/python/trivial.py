"""Bodies of one line that implement nothing, put in the place of a function's body."""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.languages.python.delete import STUB
from composer_replication.languages.python.functions import Function

_BODIES = (
    "return None", "return 0", "return 1", "return ''", "return []", "return {}", "return ()", "return False", "return True",
    "return iter(())", "return FIRST", "return SECOND", "return LAST", "return str(FIRST)", "return [LAST]",
    "return not LAST", "return bool(LAST)", "return len(FIRST)", "return len(LAST)",
    "return next(iter(vars(FIRST).values()))", "return [*vars(FIRST).values()][-1]",
    "raise KeyError", "raise ValueError", "raise TypeError",
    "raise IndexError", STUB,
    "return type('Any', (), {'__eq__': lambda a, b: True, '__hash__': lambda a: 0, '__bool__': lambda a: True})()",
    "return type('Mock', (), dict.fromkeys(['__getattr__', '__call__', '__getitem__', '__enter__'], lambda s, *_, **__: s)"
    " | {'__iter__': lambda s: iter(()), '__len__': lambda s: 0, '__int__': lambda s: 1, '__exit__': lambda *_: None})()",
)  # fmt: skip
"""From the simplest on. FIRST, SECOND and LAST are the function's parameters, where it has as many."""

_COMMON = ("return None", "raise ValueError", "raise KeyError")


def trivial_bodies(function: Function) -> list[str]:
    """Return the trivial bodies that a function can have, each a line without its indentation."""
    filled = (_filled(body, function.parameters) for body in _BODIES)
    return [body for body in dict.fromkeys(filled) if body is not None]


def bodies_by_heart(function: Function) -> list[str]:
    """Return the trivial bodies that depend on the arguments, and some others, for calls whose answers are not known by heart.
    The constants worth trying there are the function's own answers."""
    filled = (_filled(body, function.parameters) for body in (*_COMMON, *(body for body in _BODIES if _depends(body))))
    return [body for body in dict.fromkeys(filled) if body is not None]


def _depends(body: str) -> bool:
    return any(place in body for place in ("FIRST", "SECOND", "LAST"))


def _filled(body: str, names: Sequence[str]) -> str | None:
    """Return the body with the names of parameters; None where there is no such parameter."""
    places = {"FIRST": names[:1], "SECOND": names[1:2], "LAST": names[-1:]}
    for place, name in places.items():
        if place in body:
            if not name:
                return None
            body = body.replace(place, name[0])
    return body
