"""A shell command of the agent: run in a separate sandbox over the workspace, which takes over the changed files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from composer_replication.envs.tools import clip
from composer_replication.envs.workspace import Workspace
from composer_replication.sandbox import Command, Ending, ExecResult, Limits, Sandbox
from composer_replication.sandbox.grading.languages import graded_language
from composer_replication.sandbox.grading.submission import is_editable
from composer_replication.sandbox.protocol import signal_name
from composer_replication.types import TaskSpec

_SHOWN_CHARS = 10_000
_OUTPUT_BYTES = 1 << 20
_NAMED = 10
"""How many files a result names."""


def run_command(
    command: str, workspace: Workspace, spec: TaskSpec, *, sandbox: Sandbox, python: Path, limits: Limits
) -> tuple[str, str, dict[str, Any]]:
    """Run a `bash` call and return its status, content and details; the workspace takes the changed files, also when the command
    failed.

    Nothing of the sandbox lives on but these files: no process, no variable, no working directory, no mode of a file. What a
    command says is the agent's business and need not be deterministic.

    Raises:
        SandboxError: the sandbox broke.
    """
    script = f"exec 2>&1\n{graded_language(spec).shell_setup(spec.python_path, python)}{command}"
    result = sandbox.run(
        workspace.tree,
        Command(
            argv=("/usr/bin/env", "bash", "-c", script),
            python=python,
            env={"PYTHONSAFEPATH": ""},
            limits=dataclasses.replace(limits, output_bytes=_OUTPUT_BYTES),
            read_back=True,
        ),
    )
    before, after = workspace.changes, dict(result.changes or {})
    changed = sorted(p for p in before.keys() | after.keys() if (p in before, before.get(p)) != (p in after, after.get(p)))
    workspace.changes = after
    ungraded = [path for path in changed if not is_editable(spec, path)]
    status, how = _ending(result, limits)
    lines = [_shown(result.stdout), how, _naming("changed, but not editable and so not graded", ungraded)]
    lines.append(_naming("not kept", list(result.not_kept)))
    content = "\n".join(line for line in lines if line) or "(no output)"
    return status, content, {"returncode": result.returncode, "changed": changed, "ungraded": ungraded}


def _ending(result: ExecResult, limits: Limits) -> tuple[str, str]:
    match result.ending:
        case Ending.TIMEOUT:
            return "timeout", f"timed out after {limits.wall_s:g} s"
        case Ending.OUT_OF_MEMORY:
            return "out_of_memory", f"ran out of memory ({limits.memory_mb} MB)"
        case Ending.OUTPUT_LIMIT:
            return "command_failed", f"used up its disk ({limits.disk_mb} MB)"
        case Ending.KILLED:
            return "command_failed", f"killed by {signal_name(-result.returncode)}"
        case Ending.EXITED if result.returncode != 0:
            return "command_failed", f"exit status {result.returncode}"
        case _:
            return "ok", ""


def _shown(output: bytes) -> str:
    """Return the first and the last of the output: errors stand at the end."""
    text = output.decode(errors="replace").rstrip("\n")
    if len(text) <= _SHOWN_CHARS:
        return text
    half = _SHOWN_CHARS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _naming(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{what}: {clip(', '.join(names[:_NAMED]), 800)}{more}"
