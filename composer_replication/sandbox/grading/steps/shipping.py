"""Functions and classes that a test defines, written down so that a process without the tests can make them again.

They travel as the source text of the rewritten test file, with the values of the names that they use, so that another version of
Python reads them too. The text of this module runs inside sandboxes, behind that of `literals`.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.literals import Reference, Unwritable, decode, encode_argument

_LONGEST_SOURCE = 8000
_DEEPEST = 6
"""Limit on functions that use functions that use functions."""

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Shipper:
    """Writes functions and classes of test files."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.files: dict[str, tuple[str, list[ast.AST]]] = {}
        self.open: list[Any] = []

    def write(self, value: Any) -> list[Any]:
        """Return `["shipped", name, source, {free name: value}]`. Raises Unwritable."""
        if any(value is one for one in self.open) or len(self.open) == _DEEPEST:
            raise Unwritable("a function of a test that uses itself")
        self.open.append(value)
        try:
            source, names = self._class(value) if isinstance(value, type) else self._function(value)
            if len(source) > _LONGEST_SOURCE:
                raise Unwritable("long")
            free = {name: encode_argument(held, self.reference) for name, held in _held(value, names)}
            return ["shipped", value.__name__, source, free]
        finally:
            self.open.pop()

    def _nodes(self, file: str) -> list[ast.AST]:
        if file not in self.files:
            source = "".join(linecache.getlines(file))
            try:
                self.files[file] = (source, list(ast.walk(ast.parse(source))))
            except (SyntaxError, ValueError, RecursionError):
                raise Unwritable("a file of a test that cannot be read") from None
        return self.files[file][1]

    def _function(self, function: FunctionType) -> tuple[str, set[str]]:
        """Return the source of a function without its decorators, and the names it uses. Raises Unwritable."""
        code = function.__code__
        node = next((n for n in self._nodes(code.co_filename) if _defines(n, code)), None)
        if not isinstance(node, FunctionNode):
            raise Unwritable("a function whose source is not found")
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        parts: list[ast.AST] = [node.args, *body]
        if any(isinstance(inner, ast.Nonlocal) for part in parts for inner in ast.walk(part)):
            raise Unwritable("a function that changes another's variables")
        return self._text(code.co_filename, node), _names(parts)

    def _class(self, kind: type) -> tuple[str, set[str]]:
        """Return the source of a class with its decorators, and the names it uses. Raises Unwritable."""
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
        scope = self._nodes(file)
        for part in kind.__qualname__.split("."):
            if part != "<locals>":
                named = [node for node in scope if getattr(node, "name", None) == part]
                scope = [inner for node in named for inner in ast.walk(node) if inner is not node]
        if len(named) != 1 or not isinstance(named[0], ast.ClassDef):
            raise Unwritable("a class whose source is not found")
        decorators = "".join(f"@{ast.unparse(decorator)}\n" for decorator in named[0].decorator_list)
        return decorators + self._text(file, named[0]), _names([named[0]])

    def _text(self, file: str, node: FunctionNode | ast.ClassDef) -> str:
        """Return a definition's text, moved to the left margin."""
        text = ast.get_source_segment(self.files[file][0], node) or ""
        if isinstance(node, ast.Lambda):
            return f"({text})"
        return text.replace("\n" + " " * node.col_offset, "\n")


def _defines(node: ast.AST, code: CodeType) -> bool:
    """Return whether a definition is that of a code object: by its first line and name, a lambda by its position."""
    if isinstance(node, ast.Lambda) and code.co_name == "<lambda>":
        places = [(line, column) for line, _, column, end in code.co_positions() if line and column is not None and end]
        body = node.body
        last = (body.end_lineno or 0, body.end_col_offset or 0)
        return bool(places) and (body.lineno, body.col_offset) <= min(places) <= last and node.lineno == code.co_firstlineno
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
        return min(part.lineno for part in (node, *node.decorator_list)) == code.co_firstlineno
    return False


def _names(parts: list[ast.AST]) -> set[str]:
    return {node.id for part in parts for node in ast.walk(part) if isinstance(node, ast.Name)} - {"__composer__", "__class__"}


def _held(value: Any, names: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield those of `names` that a function or class finds outside of itself, with their values. Raises Unwritable."""
    members = vars(value).values() if isinstance(value, type) else [value]
    functions = [member for member in members if isinstance(member, FunctionType)]
    place = functions[0].__globals__ if functions else vars(sys.modules[value.__module__])
    cells: dict[str, Any] = {}
    for function in functions:
        try:
            cells |= {n: c.cell_contents for n, c in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)}
        except ValueError:
            raise Unwritable("a function that uses what is not there yet") from None
    for name in sorted(names):
        if name in cells:
            yield name, cells[name]
        elif name in place and getattr(builtins, name, None) is not place[name]:
            yield name, place[name]


def rebuild(written: list[Any], resolve: Callable[[list[Any]], Any]) -> Any:
    """Make a function or class again from what `Shipper.write` returned. Raises what running its definition raises."""
    _, name, source, free = written
    place: dict[str, Any] = {"__name__": "shipped", **{free_name: decode(held, resolve) for free_name, held in free.items()}}
    if source.startswith("(lambda"):
        return eval(compile(source, "<shipped>", "eval"), place)
    exec(compile(source, "<shipped>", "exec"), place)
    return place[name]
