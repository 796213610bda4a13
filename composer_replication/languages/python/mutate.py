"""Small wrong versions of the gold code: a suite that cannot tell them from it is too weak to grade anybody.

Each changes one expression or statement of a function's body, the classic way (DeMillo, Lipton and Sayward 1978): a comparison or
an arithmetic operator is replaced, a condition negated, `and` and `or` swapped, a constant changed, a returned value dropped.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Sequence

from composer_replication.languages.functions import Function, split_lines
from composer_replication.types.syntax import parse_module

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def mutants_of(source: bytes, functions: Sequence[Function], count: int, seed: str) -> list[bytes]:
    """Return at most `count` versions of a file, each with one change in the body of one of `functions`, which are in it.

    The functions take turns; which change is made is drawn with `seed`. A body that offers none gives none.
    """
    tree = parse_module(source)
    rng = random.Random(seed)
    offers = []
    for function in functions:
        changes = list(_changes(tree, function))
        rng.shuffle(changes)
        offers.append(changes)
    turns = [changes[n] for n in range(count) for changes in offers if n < len(changes)]
    return [_replaced(source, node, text) for node, text in turns[:count]]


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every node below, but none inside an f-string: before Python 3.12 their places are not those in the file."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.JoinedStr):
            yield child
            yield from _expressions(child)


def _changes(tree: ast.Module, function: Function) -> Iterator[tuple[ast.expr, str]]:
    """Yield expressions of the body and what to put in their place."""
    for node in _expressions(tree):
        inside = function.first_line <= getattr(node, "lineno", 0) <= function.last_line
        if not inside:
            continue
        match node:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield test, f"not ({ast.unparse(test)})"
            case ast.Return(value=ast.expr() as value) if not _is_none(value):
                yield value, "None"
            case ast.Assign(value=ast.Constant(value=bool() | int() | float() as value) as constant):
                yield constant, repr(not value if isinstance(value, bool) else value + 1)
            case ast.Compare() | ast.BinOp() | ast.BoolOp():
                text = _with_other_operator(node)
                if text:
                    yield node, text


def _with_other_operator(node: ast.Compare | ast.BinOp | ast.BoolOp) -> str:
    """Return the expression with its (first) operator replaced; empty when that one has no counterpart."""
    changed = copy.deepcopy(node)
    if isinstance(changed, ast.Compare):
        changed.ops[0] = _COMPARISONS[type(changed.ops[0])]()
    elif isinstance(changed, ast.BoolOp):
        changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
    elif type(changed.op) in _OPERATORS:
        changed.op = _OPERATORS[type(changed.op)]()
    else:
        return ""
    return ast.unparse(changed)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _replaced(source: bytes, node: ast.expr, text: str) -> bytes:
    """Return `source` with `(text)` where `node` stood; columns of the syntax tree count bytes."""
    lines = split_lines(source)
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[end_line - 1][end_column:] + b"".join(lines[end_line:])
    return before + f"({text})".encode() + after
