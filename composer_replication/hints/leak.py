"""Does a hint give away the deleted code?"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from composer_replication.actions.calls import Call
from composer_replication.types.syntax import parse_module

NGRAM = 8
"""Code tokens in a row that a hint may not share with the gold code."""
MIN_STATEMENT = 4
"""A whole statement of at least this many tokens (`return a - b`), or what it returns or assigns, may not be shared either;
shorter ones say nothing."""
MIN_OPERATION = 6
"""Nor an operation within one (`price * (1 - cut)`)."""

_TOKEN = re.compile(r"\w+|[^\w\s'\"]")
_OLD = ("old", "old_string", "old_str", "path", "file_path")


def leaks_gold(hint_text: str, gold_sources: Iterable[str]) -> bool:
    """Return True when the hint shares `NGRAM` code tokens in a row, a statement, its value, or an operation with a gold source.

    Args:
        gold_sources: the deleted bodies, and no more: what is still in the agent's tree may be quoted.

    Docstrings and comments of the gold code do not count: the agent's tree still has them. Quotes and case are ignored, so that
    neither `ast`'s choice of quote nor the beginning of a sentence can hide an overlap.
    """
    hint = _tokens(hint_text)
    return any(_shares(hint, source) for source in gold_sources)


def leaks_action(hint_text: str, calls: Iterable[Call]) -> bool:
    """Return True when the hint gives away what a better action writes or runs: `leaks_gold` on the texts among its arguments.

    Paths, patterns and other short texts do not count: to name the place is what a hint is for.
    """
    texts = [text for call in calls for text in _texts(call.arguments)]
    return leaks_gold(hint_text, [text for text in texts if len(_tokens(text)) >= MIN_STATEMENT and len(text.split()) > 1])


def _texts(value: object) -> Iterator[str]:
    """Yield the texts of an argument at any depth; of a patch, the text it adds."""
    if isinstance(value, str):
        added = [line[1:] for line in value.splitlines() if line.startswith("+")]
        yield from (value, "\n".join(added))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in _OLD:
                yield from _texts(inner)
    elif isinstance(value, Sequence):
        words = [word for word in value if isinstance(word, str)]
        yield " ".join(words)  # a command as a list of its words
        for inner in value:
            yield from _texts(inner)


def _shares(hint: list[str], source: str) -> bool:
    tree = _parsed(source)
    lines = [_tokens(line) for line in (source if tree is None else ast.unparse(tree)).splitlines()]
    phrases = [line for line in lines if len(line) >= MIN_STATEMENT]
    if tree is not None:
        phrases += _expressions(tree)
    if any(_contains(hint, phrase) for phrase in phrases):
        return True
    gold = [token for line in lines for token in line]
    grams = {tuple(gold[i : i + NGRAM]) for i in range(len(gold) - NGRAM + 1)}
    return any(tuple(hint[i : i + NGRAM]) in grams for i in range(len(hint) - NGRAM + 1))


def _expressions(tree: ast.AST) -> Iterator[list[str]]:
    """Yield the tokens of returned or assigned values, except bare names, and of longer operations."""
    for node in ast.walk(tree):
        shown, least = None, MIN_OPERATION
        if isinstance(node, ast.Return | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Yield):
            plain = isinstance(node.value, ast.Name | ast.Attribute | ast.Constant)
            shown, least = None if plain else node.value, MIN_STATEMENT
        elif isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.GeneratorExp | ast.ListComp):
            shown = node
        if shown is not None and len(tokens := _tokens(ast.unparse(shown))) >= least:
            yield tokens


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text.lower())


def _contains(tokens: list[str], part: list[str]) -> bool:
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


def _parsed(source: str) -> ast.Module | None:
    """Return the source without docstrings; a bare function body parses too. None when it is not Python."""
    dedented = textwrap.dedent(source)
    for text in (dedented, "def _():\n" + textwrap.indent(dedented, "    ")):
        try:
            tree = parse_module(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return tree
    return None
