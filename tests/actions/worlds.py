"""What tool calls and edits do: carried out by `CodingEnv` in the scratch trees."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from trees import FULL, TREES

from composer_replication.envs.coding import CodingEnv
from composer_replication.sandbox import open_sandbox
from composer_replication.types import TaskSpec, ToolCall

PROBES = ([1, 2, 3], [], [5, -1], 7, 0, -3, 2.5, "ab", None, {"a": 1})


@cache
def env_of(tree):
    folder = Path(tempfile.mkdtemp(prefix="agreement-"))
    for path, text in TREES[tree].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    spec = TaskSpec(
        task_id=tree,
        source="",
        source_digest="",
        instruction="",
        deleted=(),
        fail_to_pass=("tests/test_z.py::t",),
        pass_to_pass=(),
        editable=("**",),
    )
    return CodingEnv(
        SimpleNamespace(spec=spec, repo=folder), sandbox=open_sandbox(), python=Path(sys.executable), toolset="shell"
    )


def done(calls, tree):
    """Statuses, what was shown, and the changed files."""
    env = env_of(tree).fork()
    results = [env.step(ToolCall(call_id="c", name=c["name"], arguments=c["arguments"])) for c in calls]
    shown = [r.content if r.status == "ok" else "" for r in results]  # an error quotes the path as it was written
    return [r.status for r in results], shown, env.workspace.changes


def effect_of_tool(one, other):
    return all(done([one], tree) == done([other], tree) for tree in TREES)


def code_of(source):
    """What CPython makes of it, without lines; None for what it refuses."""

    def plain(code):
        inner = tuple(plain(c) if hasattr(c, "co_code") else (type(c), c) for c in code.co_consts)
        return code.co_code, inner, code.co_names, code.co_varnames, code.co_name, code.co_flags

    try:
        return plain(compile(source, "x", "exec"))
    except SyntaxError:
        return None


def told_to_tools(source):
    """Comments that change what a checker, a formatter or the interpreter says of the code."""
    return re.findall(r"^.*# *(?:noqa|type:|pragma:|fmt:|-\*- coding).*$", source, re.MULTILINE)


def behaviour(source):
    """What its functions return for the probes, and its plain values."""
    scope = {}
    try:
        exec(source, scope)
    except Exception as error:  # noqa: BLE001
        return repr(type(error))
    seen = {}
    for name, value in scope.items():
        if name.startswith("__"):
            continue
        if not callable(value):
            seen[name] = repr(value)
            continue
        seen[name] = [outcome(value, probe) for probe in PROBES]
    return seen


def outcome(function, probe):
    try:
        return repr(function(probe))
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"


def effect_of_edit(one, other):
    """True or False for the label; None where code differs and no probe shows it."""
    (one_status, _, one_files), (other_status, _, other_files) = done(one, "full"), done(other, "full")
    if set(one_status) != {"ok"} or set(other_status) != {"ok"}:
        if set(one_status) == set(other_status) == {"ok"}:
            raise AssertionError
        return None if set(one_status) != {"ok"} and set(other_status) != {"ok"} else False
    same = True
    for path in sorted({*one_files, *other_files}):
        default = FULL.get(path)
        texts = [
            files[path].decode() if files.get(path) is not None else (None if path in files else default)
            for files in (one_files, other_files)
        ]
        if texts[0] == texts[1]:
            continue
        if None in texts or not path.endswith(".py"):
            return False
        if code_of(texts[0]) is not None and code_of(texts[0]) == code_of(texts[1]):
            if told_to_tools(texts[0]) != told_to_tools(texts[1]):
                return False
            continue
        if behaviour(texts[0]) != behaviour(texts[1]):
            return False
        same = None
    return same


def action(calls):
    return "\n".join(json.dumps(call, ensure_ascii=False) for call in (calls if isinstance(calls, list) else [calls]))
