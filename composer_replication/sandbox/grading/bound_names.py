"""Find the built-in functions that code uses by their names, without giving these names to something of its own.

A name that a function binds anywhere never means the built-in one there. In a module it may, until the name is bound for sure:
below a definition, an assignment or an import that depends on no condition, and that no `del` undoes.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_Place: TypeAlias = tuple[int, int]
_END: _Place = (sys.maxsize, 0)


class _Binding(NamedTuple):
    """A name that a module binds, and where in the text it is certain to be bound."""

    name: str
    since: _Place
    until: _Place


@dataclass(slots=True)
class _Scope:
    """The names that a function, a comprehension or a class binds."""

    outer: _Scope | None
    is_class: bool
    names: set[str] = field(default_factory=set)
    of_module: set[str] = field(default_factory=set)
    """Names declared `global`."""

    def binds(self, name: str) -> bool:
        """Return whether a name used here means what a function or comprehension binds."""
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.of_module or (scope.is_class and scope is self and name in scope.names):
                return False
            if name in scope.names and not scope.is_class:
                return True
            scope = scope.outer
        return False


def used_builtins(tree: ast.Module, names: Set[str]) -> set[str]:
    """Return those of the names that are used where nothing of the module's own is certain to have them."""
    uses = [(name, place) for name, place in _free(tree) if name in names]
    if not uses:
        return set()
    unbound = {name for node in ast.walk(tree) for name in _unbound(node)}
    try:
        bindings = [one for one in _bindings(tree.body, _END) if one.name in names - unbound]
    except RecursionError:
        bindings = []
    return {name for name, place in uses if not any(one.name == name and one.since <= place < one.until for one in bindings)}


def _unbound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Del()) | ast.ExceptHandler(name=str(name)):
            yield name


def _free(tree: ast.Module) -> Iterator[tuple[str, _Place]]:
    """Yield the names that are read and that no function or comprehension around them binds, with their places."""
    waiting: list[tuple[ast.AST, _Scope | None]] = [(tree, None)]
    while waiting:
        node, scope = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and not (scope and scope.binds(node.id)):
            yield node.id, (node.lineno, node.col_offset)
        outside, inside = _split(node)
        waiting += [(child, scope) for child in outside]
        if inside:
            own = _scope(node, inside, scope)
            waiting += [(child, own) for child in inside]


def _split(node: ast.AST) -> tuple[list[ast.AST], list[ast.AST]]:
    """Return the parts of a node that belong to the scope around it, and those that belong to one of its own."""
    inside: list[ast.AST] = []
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            inside = [*node.body]
        case ast.Lambda():
            inside = [node.body]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            first = node.generators[0]
            rest = [child for child in ast.iter_child_nodes(node) if child is not first]
            return [first.iter], [*rest, first.target, *first.ifs]
    own = set(map(id, inside))
    return [child for child in ast.iter_child_nodes(node) if id(child) not in own], inside


def _scope(node: ast.AST, inside: Sequence[ast.AST], outer: _Scope | None) -> _Scope:
    scope = _Scope(outer, isinstance(node, ast.ClassDef))
    if isinstance(node, _Function | ast.Lambda):
        scope.names.update(one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg))
    targets = [one.target for one in node.generators] if isinstance(node, _Comprehension) else inside
    elsewhere: set[str] = set()
    waiting: list[ast.AST] = list(targets)
    while waiting:
        part = waiting.pop()
        match part:
            case ast.Global(names=names):
                scope.of_module.update(names)
            case ast.Nonlocal(names=names):
                elsewhere.update(names)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.ExceptHandler(name=str(name)):
                scope.names.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                scope.names.add(name)
            case ast.stmt():
                scope.names.update(_defined(part))
        waiting += _split(part)[0]
    scope.names -= elsewhere
    return scope


def _defined(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a definition, an import or an assignment binds."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=items) | ast.ImportFrom(names=items):
            yield from (item.asname or item.name.partition(".")[0] for item in items)
        case ast.Assign(targets=targets):
            for target in targets:
                yield from _targets(target)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            yield name


def _targets(target: ast.expr | None) -> Iterator[str]:
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Tuple(elts=items) | ast.List(elts=items):
            for item in items:
                yield from _targets(item)
        case ast.Starred(value=item):
            yield from _targets(item)


def _bindings(block: Sequence[ast.stmt], until: _Place) -> Iterator[_Binding]:
    """Yield what the statements of a block bind up to its end, and what those inside of them bind up to the ends of theirs."""
    for statement in block:
        since = _end(statement)
        if isinstance(statement, _Function) and not statement.decorator_list:
            since = _start(statement.body[0])  # it may call itself
        yield from (_Binding(name, since, until) for name in _surely(statement))
        for names, inner in _blocks(statement):
            last = _end(inner[-1])
            yield from (_Binding(name, _start(inner[0]), last) for name in names)
            yield from _bindings(inner, last)


def _surely(statement: ast.stmt) -> set[str]:
    """Return the names that are bound once a statement is done, whichever way it went."""
    match statement:
        case ast.If(body=body, orelse=orelse):
            return _all(body) & _all(orelse)
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
            ways = [_all(body) | _all(orelse), *(_all(handler.body) for handler in handlers)]
            return set.intersection(*ways) | _all(final)
    return set(_defined(statement))


def _all(block: Sequence[ast.stmt]) -> set[str]:
    return set[str]().union(*map(_surely, block))


def _blocks(statement: ast.stmt) -> Iterator[tuple[list[str], list[ast.stmt]]]:
    """Yield the blocks of a statement, each with the names that are bound when it begins."""
    names: list[str] = []
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return
        case ast.For() | ast.AsyncFor():
            names = [*_targets(statement.target)]
        case ast.With() | ast.AsyncWith():
            names = [name for item in statement.items for name in _targets(item.optional_vars)]
        case ast.Match(cases=cases):
            yield from (([], case.body) for case in cases)
    for title in ("body", "orelse", "finalbody"):
        if block := getattr(statement, title, None):
            yield names if title == "body" else [], block
    yield from (([], handler.body) for handler in getattr(statement, "handlers", ()))


def _start(node: ast.stmt) -> _Place:
    return node.lineno, node.col_offset


def _end(node: ast.stmt) -> _Place:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
