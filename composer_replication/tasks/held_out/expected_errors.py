"""Exceptions that test files expect."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from composer_replication.types.syntax import parse_module

_EXPECTING = frozenset({"raises", "assertRaises", "assertRaisesRegex"})


class ExpectedErrors:
    """Knows the exceptions that test files name as expected or caught."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.known: dict[str, frozenset[str]] = {}

    def of(self, test: str) -> frozenset[str]:
        path = test.partition("::")[0]
        if path not in self.known:
            self.known[path] = frozenset(_expected_errors(self.tree / path))
        return self.known[path]


def _expected_errors(test_file: Path) -> Iterable[str]:
    try:
        tree = parse_module(test_file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        expected: ast.AST | None = None
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _EXPECTING and node.args:
            expected = node.args[0]
        elif isinstance(node, ast.ExceptHandler):
            expected = node.type
        for name in ast.walk(expected) if expected is not None else ():
            match name:
                case ast.Name(id=mentioned) | ast.Attribute(attr=mentioned):
                    yield mentioned
