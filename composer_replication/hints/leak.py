"""Does a hint give away the deleted code?"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable

from composer_replication.actions import Call

__all__ = ["leaks_action", "leaks_gold"]

NGRAM = 8
"""Code tokens in a row that a hint may not share with the gold code."""
MIN_STATEMENT = 4
"""A whole statement of at least this many tokens (`return a - b`) may not be shared either; shorter ones say nothing."""

_TOKEN = re.compile(r"\w+|[^\w\s'\"]")


def leaks_gold(hint_text: str, gold_sources: Iterable[str]) -> bool:
    """True when the hint shares `NGRAM` code tokens in a row, or a whole statement, with any of the gold sources.

    Args:
        gold_sources: the deleted bodies, and no more: what is still in the agent's tree may be quoted.

    Docstrings and comments of the gold code do not count: the agent's tree still has them. Quotes are ignored, so that `ast`'s
    choice of quote cannot hide an overlap.
    """
    hint = _TOKEN.findall(hint_text)
    for source in gold_sources:
        statements = [_TOKEN.findall(line) for line in _code_lines(source)]
        if any(len(s) >= MIN_STATEMENT and _contains(hint, s) for s in statements):
            return True
        gold = [token for statement in statements for token in statement]
        grams = {tuple(gold[i : i + NGRAM]) for i in range(len(gold) - NGRAM + 1)}
        if any(tuple(hint[i : i + NGRAM]) in grams for i in range(len(hint) - NGRAM + 1)):
            return True
    return False


def leaks_action(hint_text: str, calls: Iterable[Call]) -> bool:
    """True when the hint gives away what a better action writes or runs: `leaks_gold` on the texts among its arguments.

    Paths, patterns and other short texts do not count: to name the place is what a hint is for.
    """
    texts = [value for call in calls for name, value in call.arguments.items() if isinstance(value, str) and name not in _OLD]
    return leaks_gold(hint_text, [text for text in texts if len(_TOKEN.findall(text)) >= MIN_STATEMENT and "/" not in text[:1]])


_OLD = ("old", "old_string", "old_str", "path", "file_path")


def _contains(tokens: list[str], part: list[str]) -> bool:
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


def _code_lines(source: str) -> list[str]:
    """The source line by line without docstrings and comments; a bare function body is understood too."""
    dedented = textwrap.dedent(source)
    for text in (dedented, "def _():\n" + textwrap.indent(dedented, "    ")):
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return ast.unparse(tree).splitlines()
    return dedented.splitlines()
