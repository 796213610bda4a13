"""Learners by heart: what the visible tests ask of a deleted function, and what it answers, as a table.

This is what a policy comes to that hard-codes the answers of the tests. The table is made independently of the build: each call
is written down as it is made while the tests run, by a key of its own, and every default that is worth trying stands behind it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from forger import ONLY_TESTS, deleted_functions, with_bodies

from composer_replication.languages.python.functions import Function
from composer_replication.sandbox import Limits, Tree
from composer_replication.sandbox.protocol import Command, Sandbox
from composer_replication.tasks.store import Task

_KEY = """
def _key(values):
    import re
    def show(value):
        try:
            held = vars(value)
        except TypeError:
            return repr(value)
        if isinstance(value, type) or callable(value):
            return repr(value)
        return type(value).__name__ + repr(sorted(held.items(), key=str))
    return re.sub("0x[0-9a-f]+", "", repr([show(value) for value in values]))

"""
_LOG = (
    _KEY
    + """
def _log(function):
    import ast, functools, inspect
    signature = inspect.signature(function)
    @functools.wraps(function)
    def logged(*args, **named):
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        names = function.__code__.co_varnames
        key = _key([bound.arguments[name] for name in names if name in bound.arguments])
        try:
            result = function(*args, **named)
        except Exception as error:
            open("LEARNT", "a").write(repr((key, "raises", type(error).__name__)) + "\\n")
            raise
        try:
            kinds = (int, str, bool, list, tuple, dict, float, type(None))
            plain = type(result) in kinds and ast.literal_eval(repr(result)) == result
        except Exception:
            plain = False
        open("LEARNT", "a").write(repr((key, "returns" if plain else "opaque", repr(result) if plain else "")) + "\\n")
        return result
    return logged

"""
)
_MOST_CALLS, _MOST_CONSTANTS = 400, 4


def learnt(task: Task, python: Path, sandbox: Sandbox) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield workspaces over a task's tree whose function answers by heart, the visible tests forged besides.

    First the constants that it returned, as the whole body, then the table with one default after another. There are none for a
    task of several functions, of a generator, or of a function that returned what Python cannot read back.
    """
    found = _single(task)
    if found is None:
        return
    path, source, function = found
    calls = _calls(task, python, sandbox, path, source, function)
    if not calls or len(calls) > _MOST_CALLS or any(kind == "opaque" for kind, _ in calls.values()):
        return
    frequent = [value for value, _ in Counter(value for kind, value in calls.values() if kind == "returns").most_common()]
    for value in frequent[:_MOST_CONSTANTS]:
        yield f"the constant {value[:60]}", {path: with_bodies(source, [(function, f"return {value}")], ONLY_TESTS)}
    defaults = dict.fromkeys([*frequent[:2], "None", "False", "True", *function.parameters[:1], *function.parameters[-1:]])
    for default in defaults:
        body = _table(calls, default)
        yield f"a table, otherwise {default[:60]}", {path: with_bodies(source, [(function, body)], _KEY + ONLY_TESTS)}


def _single(task: Task) -> tuple[str, bytes, Function] | None:
    files = task.gold_files()
    found = [(path, source, function) for path, source in files.items() for function in deleted_functions(task, path, source)]
    if len(found) != 1:
        return None
    _, source, function = found[0]
    body = "\n".join(source.decode().splitlines()[function.first_line - 1 : function.last_line])
    return None if re.search(r"\b(yield|await)\b", body) else found[0]


def _calls(
    task: Task, python: Path, sandbox: Sandbox, path: str, source: bytes, function: Function
) -> dict[str, tuple[str, str]]:
    """Run the visible tests on the gold code in a sandbox, and return by key how each call ended and with what."""
    lines = source.decode().splitlines(keepends=True)
    margin = re.match(r"\s*", lines[function.def_line - 1])
    assert margin is not None
    lines.insert(function.def_line - 1, f"{margin.group()}@_log\n")
    text = "".join(lines)
    start = re.search(r"^from __future__.*\n", text, re.M)
    at = start.end() if start else 0
    limits = Limits(wall_s=task.spec.test_timeout_s, cpu_s=task.spec.test_timeout_s)
    command = Command(
        argv=(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *task.spec.fail_to_pass),
        python=python,
        env={"PYTHONPATH": ":".join(task.spec.python_path), "PYTHONDONTWRITEBYTECODE": "1"},
        limits=limits,
        read_back=True,
    )
    logged = (text[:at] + _LOG + text[at:]).encode()
    result = sandbox.run(Tree(base=task.repo, changes={path: logged}), command)
    log = (result.changes or {}).get("LEARNT") or b""
    rows = [ast.literal_eval(line) for line in log.decode(errors="replace").splitlines()]
    return {key: (kind, value) for key, kind, value in rows}


def _table(calls: dict[str, tuple[str, str]], default: str) -> str:
    returned = "{" + ", ".join(f"{key!r}: {value}" for key, (kind, value) in calls.items() if kind == "returns") + "}"
    raised = {key: value for key, (kind, value) in calls.items() if kind == "raises"}
    look = f"return {returned}.get(key, {default})"
    start = "key = _key([*locals().values()]); "
    return start + (f"exec('raise ' + {raised!r}[key]) if key in {raised!r} else None; " if raised else "") + look
