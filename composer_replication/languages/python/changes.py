"""Compare two versions of a module: find functions that differ, and leave out what differs outside of them, part by part."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence, Set
from dataclasses import dataclass
from difflib import SequenceMatcher

from composer_replication.languages.python.functions import Definition, Function, definitions, find_functions
from composer_replication.types.syntax import parse_module


def changed_functions(path: str, before: bytes, after: bytes) -> list[Function]:
    """Return the functions of a file that are new or differ in kind, arguments, decorators or body, docstrings aside; none in a
    file that cannot be parsed."""
    functions = find_functions(path, after)[0]
    known = {name: _dumped(node) for name, node in definitions(_module(before))}
    nodes = dict(definitions(_module(after)))
    return [function for function in functions if known.get(function.qualname) != _dumped(nodes[function.qualname])]


def without_parts(path: str, before: bytes, after: bytes) -> list[bytes]:
    """Return versions of a file, each without one part of what differs outside of its functions, and where there are several
    one without them all.

    A part is a run of statements that are new, gone or otherwise, in the module or in a class, or a class's bases, keywords and
    decorators. What cannot be deleted as a function (`find_functions`) is such a statement. Docstrings do not count.
    """
    functions = frozenset(function.qualname for function in find_functions(path, after)[0])
    old, new = _module(before), _module(after)

    def version(left_out: int | None) -> tuple[bytes, int]:
        merged = _Merged(functions, left_out)
        module = ast.Module(body=merged.body(old.body, new.body), type_ignores=[])
        return ast.unparse(module).encode("utf-8", "backslashreplace"), merged.parts

    try:
        whole, parts = version(None)
        return [version(part)[0] for part in range(parts)] + ([whole] if parts > 1 else [])
    except RecursionError:
        return []


def _module(source: bytes) -> ast.Module:
    try:
        return parse_module(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _dumped(node: Definition) -> str:
    """Return a function as text, without its docstring."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return "\n".join([type(node).__name__, *(ast.dump(part) for part in (node.args, *node.decorator_list, *body))])


@dataclass(slots=True)
class _Merged:
    """The newer of two versions, without some of the parts that differ."""

    functions: Set[str]
    """Names of the functions that are kept."""
    left_out: int | None
    """The part without which it is; None for all of them."""
    parts: int = 0
    """Number of the parts met so far."""

    def body(self, old: Sequence[ast.stmt], new: Sequence[ast.stmt], prefix: str = "") -> list[ast.stmt]:
        """Return the statements of a module or class; a function stays behind what was in front of it."""
        before = [statement for statement in old if not self.stays(statement, prefix)]
        places = [place for place, statement in enumerate(new) if not self.stays(statement, prefix)]
        old_texts, new_texts = ([self.text(one, prefix) for one in some] for some in (before, [new[place] for place in places]))
        merged: list[ast.stmt] = []
        done = 0
        for kind, first, last, start, stop in SequenceMatcher(None, old_texts, new_texts, autojunk=False).get_opcodes():
            end = places[stop - 1] + 1 if stop > start else done
            if kind == "equal":
                pairs = dict(zip(places[start:stop], before[first:last], strict=True))
                merged += [self.same(pairs.get(place), new[place], prefix) for place in range(done, end)]
            elif self.next_is_left_out():
                merged += [*filter(lambda one: self.stays(one, prefix), new[done:end]), *before[first:last]]
            else:
                merged += new[done:end]
            done = end
        return merged + list(new[done:])

    def stays(self, statement: ast.stmt, prefix: str) -> bool:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                return prefix + name in self.functions
            case ast.Expr(value=ast.Constant(value=str())):
                return True
        return False

    def text(self, statement: ast.stmt, prefix: str) -> str:
        """Return what makes a statement the same: the name of a class, and all of another one but the functions inside."""
        if isinstance(statement, ast.ClassDef):
            return f"class {statement.name}"
        text = ast.dump(statement)
        for name, node in definitions(statement, prefix):
            text = text.replace(ast.dump(node), name) if name in self.functions else text
        return text

    def same(self, old: ast.stmt | None, new: ast.stmt, prefix: str) -> ast.stmt:
        """Return a statement that is in both versions, unless `old` is None: the newer one, but for the parts of a class."""
        if not (isinstance(old, ast.ClassDef) and isinstance(new, ast.ClassDef)):
            return new
        merged = copy.copy(new)
        heads = [[*map(ast.dump, [*node.bases, *node.keywords]), "", *map(ast.dump, node.decorator_list)] for node in (old, new)]
        if heads[0] != heads[1] and self.next_is_left_out():
            merged.bases, merged.keywords, merged.decorator_list = old.bases, old.keywords, old.decorator_list
        merged.body = self.body(old.body, new.body, f"{prefix}{new.name}.") or [ast.Pass()]
        return merged

    def next_is_left_out(self) -> bool:
        self.parts += 1
        return self.left_out in (None, self.parts - 1)
