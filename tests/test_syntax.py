"""Source is parsed by one thread at a time."""

from __future__ import annotations

import ast
import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import composer_replication
from composer_replication.types.syntax import parse_expression, parse_module

_IN_SANDBOXES = {"shipping.py", "copies_driver.py"}
"""Texts that run in sandboxes, where nothing of this package is."""


def parse_deep(depth: int, source: str) -> ast.Module:
    """Threads disturb each other where their stacks have different depths."""
    return parse_deep(depth - 1, source) if depth else parse_module(source)


def run_some_python(*_: object) -> None:
    sum(range(50))


@pytest.mark.slow
def test_many_threads_parse_at_once():
    """With `ast.parse` in its place this fails in about one of a hundred calls."""
    source = (Path(composer_replication.__file__).parent / "sandbox/grading/steps/mutants.py").read_text()
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    gc.callbacks.append(run_some_python)  # where threads take turns while a tree is made
    try:
        with ThreadPoolExecutor(4) as pool:
            trees = list(pool.map(parse_deep, [number % 7 * 5 for number in range(200)], [source] * 200))
    finally:
        gc.callbacks.remove(run_some_python)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert all(len(tree.body) == len(trees[0].body) for tree in trees)


def test_what_is_no_python_is_a_syntax_error():
    assert ast.unparse(parse_expression("1 + (2)")) == "1 + 2"
    for parse, text in ((parse_module, "def"), (parse_expression, "a = 1")):
        with pytest.raises(SyntaxError):
            parse(text)


def test_nothing_in_the_package_parses_by_itself():
    root = Path(composer_replication.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if path.name not in _IN_SANDBOXES and "ast.parse(" in path.read_text(encoding="utf-8")
    }
    assert found <= {"types/syntax.py"}
