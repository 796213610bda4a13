"""Python source as a syntax tree, one thread at a time.

CPython 3.11 counts the depth of its trees in a place that all threads share, and raises SystemError ("AST constructor recursion
depth mismatch") when two of them parse at once (https://github.com/python/cpython/issues/106905).
"""

from __future__ import annotations

import ast
import threading

_PARSING = threading.Lock()


def parse_module(source: str | bytes) -> ast.Module:
    """Parse a file's source. Raises SyntaxError, ValueError, RecursionError or MemoryError, as `ast.parse` does."""
    with _PARSING:
        return ast.parse(source)


def parse_expression(source: str) -> ast.expr:
    """Parse one expression. Raises as `parse_module` does."""
    with _PARSING:
        return ast.parse(source, mode="eval").body
