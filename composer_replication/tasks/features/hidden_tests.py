"""A harder task from the same folder: some fail-to-pass tests are kept from the agent, and graded as before."""

from __future__ import annotations

import ast
import math
import random
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from composer_replication.languages.functions import split_lines
from composer_replication.tasks.store import Task
from composer_replication.types.syntax import parse_module

_Function: TypeAlias = tuple[str, tuple[str, ...]]
"""The path of a test file, and the names of classes and function that lead to a test in it."""


def withheld_tests(task: Task, visible: float, seed: int) -> frozenset[str]:
    """Return the test ids to hide from the agent so that it sees the share `visible` of the task's fail-to-pass test functions,
    rounded up.

    All cases of a parametrised function go together. A smaller share keeps back all that a larger one does. Functions that are
    not written out in their file under their own name (inherited, generated) are always seen, as are those that something
    else in the file names and those with a case among the pass-to-pass tests. A function of its arguments.
    """
    cases: dict[_Function, set[str]] = defaultdict(set)
    for test_id in task.spec.fail_to_pass:
        cases[_function_of(test_id)].add(test_id)
    passing = {_function_of(test_id) for test_id in task.spec.pass_to_pass}
    names = [names[-1:] for _, names in {*cases, *passing}]
    written = {(path, found) for path in {path for path, _ in cases} for found, *_ in _written(task.repo / path)}
    order = sorted(cases)
    random.Random(f"{seed}/{task.spec.task_id}").shuffle(order)
    free = [f for f in order if f in written and f not in passing and names.count(f[1][-1:]) == 1 and _is_named_once(task, *f)]
    hidden = free[: len(cases) - math.ceil(visible * len(cases))]
    return frozenset(test_id for function in hidden for test_id in cases[function])


@lru_cache(maxsize=256)
def without_tests(tree: Path, test_ids: frozenset[str]) -> Mapping[str, bytes]:
    """Return the test files of `tree` without the functions of these tests, by POSIX path; an emptied body gets a `pass`."""
    wanted: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for path, names in map(_function_of, test_ids):
        wanted[path].add(names)
    found: dict[str, bytes] = {}
    for path, functions in wanted.items():
        lines = split_lines((tree / path).read_bytes())
        for names, node, siblings in _written(tree / path):
            if names not in functions:
                continue
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            alone = all(
                isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef) and (*names[:-1], s.name) in functions for s in siblings
            )
            filler = [b" " * node.col_offset + b"pass\n"] if alone else [b""]
            lines[first - 1 : node.end_lineno] = filler + [b""] * ((node.end_lineno or first) - first)
        found[path] = b"".join(lines)
    return found


def _function_of(test_id: str) -> _Function:
    path, *names = test_id.partition("[")[0].split("::")
    return path, tuple(names)


def _is_named_once(task: Task, path: str, names: tuple[str, ...]) -> bool:
    text = (task.repo / path).read_text(encoding="utf-8", errors="replace")
    return len(re.findall(rf"\b{re.escape(names[-1])}\b", text)) == 1


def _written(
    file: Path,
) -> Iterator[tuple[tuple[str, ...], ast.FunctionDef | ast.AsyncFunctionDef, list[ast.stmt]]]:
    """Yield names, node and body around it of every function of a module and of its classes; none when it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = parse_module(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    pending: list[tuple[tuple[str, ...], list[ast.stmt]]] = [((), module.body)]
    while pending:
        names, body = pending.pop()
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (*names, node.name), node, body
            elif isinstance(node, ast.ClassDef):
                pending.append(((*names, node.name), node.body))
