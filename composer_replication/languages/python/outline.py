"""The outline of a Python function: what an instruction may say of it."""

from __future__ import annotations

import ast

from composer_replication.types.syntax import parse_module


def outline(source: bytes, qualname: str) -> tuple[str, str]:
    """Return the signature in one line, and the docstring (empty when there is none)."""
    node: ast.AST = parse_module(source)
    for name in qualname.split("."):
        node = next(
            inner
            for inner in ast.walk(node)
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and inner.name == name
        )
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returned = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{word} {node.name}({ast.unparse(node.args)}){returned}", ast.get_docstring(node) or ""
