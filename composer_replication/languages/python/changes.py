"""Compare two versions of a module: find functions that differ, and leave out what differs outside of them, part by part."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from enum import IntEnum

from composer_replication.languages.functions import Function
from composer_replication.languages.python.functions import Definition, definitions, find_functions
from composer_replication.types.syntax import parse_module


def changed_functions(path: str, before: bytes, after: bytes) -> list[Function]:
    """Return the functions of a file that are new or differ in kind, arguments, decorators or body, docstrings aside; none in a
    file that cannot be parsed."""
    functions = find_functions(path, after)[0]
    known = {name: _dumped(node) for name, node in definitions(_module(before))}
    nodes = dict(definitions(_module(after)))
    return [function for function in functions if known.get(function.qualname) != _dumped(nodes[function.qualname])]


def without_parts(path: str, before: bytes, after: bytes) -> list[bytes]:
    """Return versions of a file, each without one part of what differs outside of its functions, and at the end one without them
    all. What tests are more likely to tell comes first.

    A part is a run of statements that are new, gone or otherwise, in the module or in a class, or what differs in a class's head.
    So is each new base, decorator and keyword of either, and each statement in the body of a new class. What cannot be deleted as
    a function (`find_functions`) is such a statement. Docstrings do not count.
    """
    functions = frozenset(function.qualname for function in find_functions(path, after)[0])
    old, new = _module(before), _module(after)

    def version(merged: _Merged) -> bytes:
        module = ast.Module(body=merged.body(old.body, new.body), type_ignores=[])
        return ast.unparse(module).encode("utf-8", "backslashreplace")

    try:
        unchanged = version(whole := _Merged(functions, left_out=_NOTHING))
        ranked = sorted(range(len(whole.parts)), key=whole.parts.__getitem__)
        versions = dict.fromkeys(version(_Merged(functions, left_out=part)) for part in (*ranked, None))
    except RecursionError:
        return []
    return [one for one in versions if one != unchanged]


def _module(source: bytes) -> ast.Module:
    try:
        return parse_module(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


def _dumped(node: Definition) -> str:
    """Return a function as text, without its docstring."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    return "\n".join([type(node).__name__, *(ast.dump(part) for part in (node.args, *node.decorator_list, *body))])


class _Rank(IntEnum):
    """Kinds of parts, the one that tests are most likely to tell first."""

    RUN = 0
    """Statements or a head that differ."""
    ONE_OF_SEVERAL = 1
    """A base beside others, or a keyword."""
    ONLY = 2
    """The only base, or a decorator: without it hardly anything works."""
    STATEMENT = 3
    """In the body of a new class."""


_NOTHING = -1
"""No part's number."""


@dataclass(slots=True)
class _Merged:
    """The newer of two versions, without some of the parts that differ."""

    functions: Set[str]
    """Names of the functions that are kept."""
    left_out: int | None
    """The part without which it is; None for all of them."""
    parts: list[_Rank] = field(default_factory=list)
    """The parts met so far."""

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
            elif self.next_is_left_out(_Rank.RUN):
                merged += [*filter(lambda one: self.stays(one, prefix), new[done:end]), *before[first:last]]
            else:
                merged += [self.fresh(one, prefix) for one in new[done:end]]
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
        heads = [[*map(ast.dump, [*node.bases, *node.keywords]), "", *map(ast.dump, node.decorator_list)] for node in (old, new)]
        if heads[0] != heads[1] and self.next_is_left_out(_Rank.RUN):
            merged = copy.copy(new)
            merged.bases, merged.keywords, merged.decorator_list = old.bases, old.keywords, old.decorator_list
        else:
            merged = self.headed(old, new)
        merged.body = self.body(old.body, new.body, f"{prefix}{new.name}.") or [ast.Pass()]
        return merged

    def fresh(self, new: ast.stmt, prefix: str) -> ast.stmt:
        """Return a statement that is in the newer version only, without a part where it is a class."""
        if not isinstance(new, ast.ClassDef):
            return new
        merged = self.headed(None, new)
        inside = f"{prefix}{new.name}."
        kept = [one for one in new.body if self.stays(one, inside) or not self.next_is_left_out(_Rank.STATEMENT)]
        merged.body = [self.fresh(one, inside) for one in kept] or [ast.Pass()]
        return merged

    def headed(self, old: ast.ClassDef | None, new: ast.ClassDef) -> ast.ClassDef:
        """Return a copy of a class without one of the bases, keywords and decorators that the older version lacks."""
        known = set(map(ast.dump, _head(old))) if old else set()
        merged = copy.copy(new)
        rank = _Rank.ONE_OF_SEVERAL if len(new.bases) > 1 else _Rank.ONLY
        merged.bases = [base for base in new.bases if ast.dump(base) in known or not self.next_is_left_out(rank)]
        merged.keywords = self.keywords(new.keywords, known)
        merged.decorator_list = []
        for decorator in new.decorator_list:
            if not known.isdisjoint(map(ast.dump, _called(decorator))) or not self.next_is_left_out(_Rank.ONLY):
                merged.decorator_list.append(shown := copy.copy(decorator))
                if isinstance(shown, ast.Call):
                    shown.keywords = self.keywords(shown.keywords, known)
        return merged

    def keywords(self, new: Sequence[ast.keyword], known: Set[str]) -> list[ast.keyword]:
        return [one for one in new if ast.dump(one) in known or not self.next_is_left_out(_Rank.ONE_OF_SEVERAL)]

    def next_is_left_out(self, rank: _Rank) -> bool:
        self.parts.append(rank)
        return self.left_out in (None, len(self.parts) - 1)


def _head(node: ast.ClassDef) -> Iterator[ast.AST]:
    """Yield the bases, keywords and decorators of a class, what decorators call, and the keywords of those calls."""
    yield from (*node.bases, *node.keywords)
    for decorator in node.decorator_list:
        yield from _called(decorator)
        yield from decorator.keywords if isinstance(decorator, ast.Call) else ()


def _called(decorator: ast.expr) -> Iterator[ast.expr]:
    yield decorator
    if isinstance(decorator, ast.Call):
        yield decorator.func
