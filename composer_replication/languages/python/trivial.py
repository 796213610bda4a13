"""Bodies of one line that implement nothing, put in the place of a function's body."""

from __future__ import annotations

import ast
import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from composer_replication.languages.python.delete import STUB
from composer_replication.languages.python.functions import Function, split_lines
from composer_replication.types.syntax import parse_module

_BODIES = (
    "return None", "return 0", "return 1", "return ''", "return []", "return {}", "return ()", "return False", "return True",
    "return iter(())", "return FIRST", "return SECOND", "return LAST", "raise KeyError", "raise ValueError", "raise TypeError",
    "raise IndexError", STUB,
    "return type('Any', (), {'__eq__': lambda a, b: True, '__hash__': lambda a: 0, '__bool__': lambda a: True})()",
    "return __import__('unittest.mock').mock.MagicMock()",
)  # fmt: skip
"""From the simplest on. FIRST, SECOND and LAST are the function's parameters, where it has as many."""


@dataclass(frozen=True, slots=True)
class TrivialBody:
    """A source file in which one function has a trivial body."""

    body: str
    source: str


def trivial_bodies(source: bytes, function: Function) -> Sequence[TrivialBody]:
    """Return `source`, which is UTF-8, with each trivial body in the place of that of `function`. Raises SyntaxError."""
    text = source.removeprefix(codecs.BOM_UTF8)
    lines = split_lines(text)
    before, after = lines[: function.first_line - 1], lines[function.last_line :]
    names = _parameters(text, function)
    found = []
    for body in _BODIES:
        line = _filled(body, names)
        if line is not None:
            whole = b"".join([*before, function.indent, line.encode(), b"\n", *after])
            found.append(TrivialBody(line, whole.decode()))
    return found


def _parameters(source: bytes, function: Function) -> list[str]:
    name = function.qualname.rpartition(".")[2]
    for node in ast.walk(parse_module(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != name:
            continue
        if node.lineno < function.first_line <= (node.end_lineno or 0):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *filter(None, [arguments.vararg]), *arguments.kwonlyargs]
            return [argument.arg for argument in every]
    return []


def _filled(body: str, names: Sequence[str]) -> str | None:
    """Return the body with the names of parameters; None where there is no such parameter, or it is the first one again."""
    places = {"FIRST": names[:1], "SECOND": names[1:2], "LAST": names[-1:]}
    for place, name in places.items():
        if place in body:
            if not name or (body == "return LAST" and len(names) <= 2):
                return None
            body = body.replace(place, name[0])
    return body
