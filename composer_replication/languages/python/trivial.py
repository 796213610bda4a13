"""Bodies of one line that implement nothing, put in the place of a function's body or of those of several functions at once, and
lines in front of a body that cut its arguments short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from composer_replication.languages.functions import Function
from composer_replication.languages.python.delete import STUB

_BODIES = (
    "return None", "return 0", "return 1", "return ''", "return []", "return {}", "return ()", "return False", "return True",
    "return iter(())", "return FIRST", "return SECOND", "return LAST", "return str(FIRST)", "return [LAST]",
    "return not LAST", "return bool(LAST)", "return len(FIRST)", "return len(LAST)",
    "return next(iter(vars(FIRST).values()))", "return [*vars(FIRST).values()][-1]",
    "return type(FIRST)(SECOND)", "return type(FIRST)(FIRST)", "return FIRST is SECOND", "return NotImplemented",
    "raise KeyError", "raise ValueError", "raise TypeError",
    "raise IndexError", STUB,
    "return type('Any', (), {'__eq__': lambda a, b: True, '__hash__': lambda a: 0, '__bool__': lambda a: True})()",
    "return type('Mock', (), dict.fromkeys(['__getattr__', '__call__', '__getitem__', '__enter__'], lambda s, *_, **__: s)"
    " | {'__iter__': lambda s: iter(()), '__len__': lambda s: 0, '__int__': lambda s: 1, '__exit__': lambda *_: None})()",
)  # fmt: skip
"""From the simplest on. FIRST, SECOND and LAST are the function's parameters, where it has as many."""

_COMMON = ("return None", "raise ValueError", "raise KeyError")
_KEPT_IN = (
    "type('Kept', (), {})",
    "next(c for c in globals().values() if isinstance(c, type) and c.__module__ == __name__)",
    "[c for c in globals().values() if isinstance(c, type) and c.__module__ == __name__][-1]",
)
"""Classes whose objects may keep an argument: any, or the first or last that the function's module defines."""
_LONG, _MANY = 8, (2, 4)
"""Items of an argument, and arguments by position, behind which nothing is looked at."""
_MOST_SHORTENED = 3
"""Parameters of a function that are cut short, each alone."""
_LONGEST_ASKED = 2000
"""Characters of a text that holds what tests ask for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Words that tests look for in the texts that a function leads to."""

    begins: tuple[str, ...] = ()
    """Texts of which one has to come first."""
    holds: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    everywhere: str = ""
    """The beginning that all texts share, also where words of the tests are exchanged."""

    @property
    def first(self) -> str:
        """Return the beginning that is common to all texts that have to come first."""
        return common_start(self.begins)

    @property
    def last(self) -> str:
        """Return the end that is common to all texts that have to come last."""
        return common_start([text[::-1] for text in self.ends])[::-1]

    @property
    def between(self) -> str:
        """Return the words that have to be there, with those that cannot come first or last because others do."""
        held = dict.fromkeys((*self.begins, *self.holds, *self.ends))
        return " ".join(text for text in held if text not in (self.first, self.last))[:_LONGEST_ASKED]

    @property
    def text(self) -> str:
        """Return all of it; empty where nothing is asked."""
        return " ".join(filter(None, (self.first, self.between, self.last)))


def trivial_bodies(function: Function) -> list[str]:
    """Return the trivial bodies that a function can have, each a line without its indentation."""
    filled = (_filled(body, function.parameters) for body in _BODIES)
    return [body for body in dict.fromkeys(filled) if body is not None]


def bodies_by_heart(function: Function) -> list[str]:
    """Return the trivial bodies that depend on the arguments, and some others, for calls whose answers are not known by heart.
    The constants worth trying there are the function's own answers."""
    filled = (_filled(body, function.parameters) for body in (*_COMMON, *(body for body in _BODIES if _depends(body))))
    return [body for body in dict.fromkeys(filled) if body is not None]


def joint_bodies(functions: Sequence[Function]) -> list[tuple[str, ...]]:
    """Return trivial bodies for several functions at once, one for each in every tuple: all of one kind, or such as keep an
    argument where one function gets it and give it back where another is asked."""
    alike = [tuple(_filled(body, f.parameters) or "return None" for f in functions) for body in _BODIES if body != STUB]
    return list(dict.fromkeys([*alike, *_keeping(functions)]))


def joint_bodies_by_heart(functions: Sequence[Function]) -> list[tuple[str, ...]]:
    """Return those of `joint_bodies` that depend on the arguments, and some others (`bodies_by_heart`)."""
    bodies = (*_COMMON, *(body for body in _BODIES if _depends(body)))
    alike = [tuple(_filled(body, f.parameters) or "return None" for f in functions) for body in bodies]
    return list(dict.fromkeys([*alike, *_keeping(functions)]))


def asked_bodies(function: Function, asked: Asked) -> list[str]:
    """Return bodies that give a text with all that tests ask for: alone, and with the arguments, or what is in the object."""
    if not asked.text:
        return []
    names = function.parameters
    dumps = ["' '.join(map(str, locals().values()))", "str(locals())"]
    if names[:1] == ("self",):
        own = ["str(vars(self))", "' '.join(map(str, vars(self).values()))"]
        dumps = own + (dumps if len(names) > 1 else [])
    rest = " ".join(filter(None, (asked.between, asked.last)))
    before = " ".join(filter(None, (asked.first, asked.between)))
    around = [(asked.first, f" {rest}"), (asked.everywhere, f" {rest}"), (f"{before} ", asked.last)]
    bodies = [[ascii(asked.text)]]
    for dump in dumps:
        bodies += [[ascii(first), dump, ascii(last)] for first, last in around]
    lines = ("return " + " + ".join(part for part in parts if part != "''") for parts in bodies)
    return list(dict.fromkeys(lines))


def shortened(function: Function) -> list[str]:
    """Return lines that cut one argument each, as in work that looks at no more of it than some tests have."""
    own = [name for name in function.parameters if name not in ("self", "cls", function.rest)][:_MOST_SHORTENED]
    many = [f"{function.rest} = {function.rest}[:{count}]" for count in _MANY if function.rest]
    return many + [f"{name} = {name}[:{_LONG}] if isinstance({name}, (str, bytes, list, tuple)) else {name}" for name in own]


def _keeping(functions: Sequence[Function]) -> list[tuple[str, ...]]:
    return [tuple(_kept(function.parameters, kind) for function in functions) for kind in _KEPT_IN]


def _kept(names: Sequence[str], kind: str) -> str:
    """Return a body that keeps an argument in an object of a class, or gives back what an object keeps."""
    if not names:
        return "return None"
    first, last = names[0], names[-1]
    if first == "self" and last != first:
        return f"return vars(self).update(kept={last})"
    made = f"object.__new__({'cls' if first == 'cls' else kind})"
    make = f"(lambda made: vars(made).update(kept={last if first == 'cls' else first}) or made)({made})"
    return (
        f"return {make}"
        if first == "cls"
        else f"return vars({first})['kept'] if 'kept' in getattr({first}, '__dict__', ()) else {make}"
    )


def common_start(texts: Sequence[str]) -> str:
    """Return what all texts begin with."""
    least, greatest = min(texts, default=""), max(texts, default="")
    differing = (at for at, pair in enumerate(zip(least, greatest, strict=False)) if pair[0] != pair[1])
    return least[: next(differing, len(least))]


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
