"""Learners by heart: what the visible tests ask of the deleted functions, and what they answer, as tables.

This is what a policy comes to that hard-codes the answers of the tests. A table is made independently of the build: each call
is written down as it is made while the tests run, by a key of its own, and every default that is worth trying stands behind it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from forger import ONLY_TESTS, deleted_functions, with_bodies

from composer_replication.languages.functions import Function
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
def _log(name):
    import ast, functools, inspect
    def log(*row):
        open("LEARNT", "a").write(repr((name, *row)) + "\\n")
    def logging(function):
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
                log(key, "raises", type(error).__name__)
                raise
            try:
                kinds = (int, str, bool, list, tuple, dict, float, type(None))
                plain = type(result) in kinds and ast.literal_eval(repr(result)) == result
            except Exception:
                plain = False
            log(key, *(("returns", repr(result)) if plain else ("opaque", "")))
            return result
        return logged
    return logging

"""
)
_MOST_CALLS, _MOST_CONSTANTS = 400, 4


_Calls: TypeAlias = dict[str, tuple[str, str]]
"""How each call of a function ended, `returns`, `raises` or `opaque`, and with what, by the key of its arguments."""


def learnt(task: Task, python: Path, sandbox: Sandbox) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield workspaces over a task's tree whose functions answer by heart, the visible tests forged besides.

    First the constants that they returned, as the whole bodies, then the tables with one default after another. There are none
    for a task with a generator, or with a function that returned what Python cannot read back.
    """
    found = {path: (source, deleted_functions(task, path, source)) for path, source in task.gold_files().items()}
    functions = [function for _, functions in found.values() for function in functions]
    if any(_yields(source, function) for source, functions in found.values() for function in functions):
        return
    calls = _calls(task, python, sandbox, found)
    known = [calls.get(function.key, {}) for function in functions]
    if not any(known) or any(len(one) > _MOST_CALLS or any(kind == "opaque" for kind, _ in one.values()) for one in known):
        return

    def workspace(bodies: Iterable[str], code: str) -> dict[str, bytes]:
        chosen = dict(zip([function.key for function in functions], bodies, strict=True))
        return {path: with_bodies(source, [(f, chosen[f.key]) for f in some], code) for path, (source, some) in found.items()}

    returned = [[value for value, _ in Counter(v for k, v in one.values() if k == "returns").most_common()] for one in known]
    for number in range(min(_MOST_CONSTANTS, max(map(len, returned)))):
        values = [some[min(number, len(some) - 1)] if some else "None" for some in returned]
        yield f"the constant {', '.join(values)[:60]}", workspace([f"return {value}" for value in values], ONLY_TESTS)
    frequent = [[some[number] if number < len(some) else "None" for some in returned] for number in (0, 1)]
    same = [[default] * len(functions) for default in ("None", "False", "True")]
    arguments = [[(function.parameters or ("None",))[at] for function in functions] for at in (0, -1)]
    for defaults in dict.fromkeys(map(tuple, [*frequent, *same, *arguments])):
        bodies = [_table(one, default) for one, default in zip(known, defaults, strict=True)]
        yield f"a table, otherwise {', '.join(defaults)[:60]}", workspace(bodies, _KEY + ONLY_TESTS)


def _yields(source: bytes, function: Function) -> bool:
    body = "\n".join(source.decode().splitlines()[function.first_line - 1 : function.last_line])
    return re.search(r"\b(yield|await)\b", body) is not None


def _calls(
    task: Task, python: Path, sandbox: Sandbox, found: Mapping[str, tuple[bytes, Sequence[Function]]]
) -> dict[str, _Calls]:
    """Run the visible tests on the gold code in a sandbox, and return the calls of each function by its key."""
    limits = Limits(wall_s=task.spec.test_timeout_s, cpu_s=task.spec.test_timeout_s)
    command = Command(
        argv=(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *task.spec.fail_to_pass),
        python=python,
        env={"PYTHONPATH": ":".join(task.spec.python_path), "PYTHONDONTWRITEBYTECODE": "1"},
        limits=limits,
        read_back=True,
    )
    logged = {path: _logged(source, functions) for path, (source, functions) in found.items()}
    result = sandbox.run(Tree(base=task.repo, changes=logged), command)
    log = (result.changes or {}).get("LEARNT") or b""
    calls: dict[str, _Calls] = {}
    for line in log.decode(errors="replace").splitlines():
        name, key, kind, value = ast.literal_eval(line)
        calls.setdefault(name, {})[key] = (kind, value)
    return calls


def _logged(source: bytes, functions: Sequence[Function]) -> bytes:
    """Return a file whose functions write down their calls."""
    lines = source.decode().splitlines(keepends=True)
    for function in sorted(functions, key=lambda function: -function.def_line):
        margin = re.match(r"\s*", lines[function.def_line - 1])
        assert margin is not None
        lines.insert(function.def_line - 1, f"{margin.group()}@_log({function.key!r})\n")
    text = "".join(lines)
    start = re.search(r"^from __future__.*\n", text, re.M)
    at = start.end() if start else 0
    return (text[:at] + _LOG + text[at:]).encode()


def _table(calls: _Calls, default: str) -> str:
    returned = "{" + ", ".join(f"{key!r}: {value}" for key, (kind, value) in calls.items() if kind == "returns") + "}"
    raised = {key: value for key, (kind, value) in calls.items() if kind == "raises"}
    look = f"return {returned}.get(key, {default})"
    start = "key = _key([*locals().values()]); "
    return start + (f"exec('raise ' + {raised!r}[key]) if key in {raised!r} else None; " if raised else "") + look
