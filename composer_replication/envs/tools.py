"""The coding tools: declared once, checked against their schemas, and what each shows of a workspace."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import regex  # type: ignore[import-untyped]  # ships without annotations
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from composer_replication.actions.calls import too_deep
from composer_replication.envs.workspace import Workspace
from composer_replication.types import ToolSchema

Toolset: TypeAlias = Literal["basic", "shell"]

MAX_LINES = 400
MAX_CHARS = 16_000
"""Most of one file or listing shown by one call."""
MAX_HITS = 20
_LINE_CHARS = 200
_CONTEXT_LINES = 2
_REGEX_SECONDS = 2.0
_PATTERN_CHARS = 400
_COMMAND_BYTES = 100_000
"""Linux takes no longer argument than 128 KiB."""
_PATTERN_COPIES = 400_000
"""Most characters of a pattern after what it repeats is written out: `regex` does that when it compiles, and nothing stops it."""
_PATTERN_PART = re.compile(
    r"\\."  # skipped, so that an escaped parenthesis or brace is none
    r"|\{(?P<count>\d+)(?:,\d*)?\}"
    r"|(?P<group>\(\?(?!:|=|!|>|<|P[<=]|[aimsu-]+[:)])[^:)]{0,8})",
    re.DOTALL,
)

_PATH = {"type": "string", "description": "path relative to the root"}
_LINE = {"type": "integer", "minimum": 1}


def _tool(name: str, description: str, required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> ToolSchema:
    parameters = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": [*required],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_DECLARED: tuple[ToolSchema, ...] = (
    _tool("list_files", "List the files below a folder.", {}, {"path": _PATH}),
    _tool("read_file", "Show a file, or its lines start to end.", {"path": _PATH}, {"start": _LINE, "end": _LINE}),
    _tool(
        "search",
        "Find lines that match a regular expression.",
        {"pattern": {"type": "string", "minLength": 1}},
        {"path": _PATH},
    ),
    _tool(
        "edit_file",
        "Replace old, which must occur exactly once, by new.",
        {"path": _PATH, "old": {"type": "string"}, "new": {"type": "string"}},
    ),
    _tool("write_file", "Create or replace a file.", {"path": _PATH, "content": {"type": "string"}}),
    _tool(
        "apply_patch",
        "Change several files, all or none. *** Begin Patch; for each file *** Update File: PATH with hunks (@@ line above, then "
        "lines after a space, - or +), *** Add File: PATH with + lines, or *** Delete File: PATH; *** End Patch.",
        {"patch": {"type": "string", "minLength": 1}},
    ),
    _tool(
        "bash",
        "Run a command in the sandbox, from the root. Changed files are kept (only editable ones are graded), processes are not.",
        {"command": {"type": "string", "minLength": 1}},
    ),
    _tool("run_tests", "Run the task's tests.", {}),
    _tool("submit", "Finish: the work is graded.", {}),
)

CODING_TOOLS = tuple(tool for tool in _DECLARED if tool["function"]["name"] not in ("apply_patch", "bash"))
"""Tools that need nothing but the workspace and the task's tests."""

TOOLSETS: Mapping[Toolset, tuple[ToolSchema, ...]] = {"basic": CODING_TOOLS, "shell": _DECLARED}
"""The sets of tools an env may offer; `shell` adds multi-file patches and shell commands."""

_VALIDATORS = {t["function"]["name"]: Draft202012Validator(t["function"]["parameters"]) for t in _DECLARED}


def argument_error(tool: str, arguments: Mapping[str, Any]) -> str | None:
    """Return why `arguments` do not fit the schema of `tool`, in one short line, or None when they do."""
    if too_deep(arguments):
        return "nested too deeply"
    error = best_match(_VALIDATORS[tool].iter_errors(dict(arguments)))
    if error is None:
        problem = _text_error(arguments)
        if problem is None and tool == "search":
            problem = _pattern_error(arguments["pattern"])
        elif problem is None and tool == "bash":
            problem = _command_error(arguments["command"])
        return problem
    where = f"{error.json_path[2:]}: " if error.path else ""
    return clip(f"{where}{error.message}", _LINE_CHARS)


def _text_error(arguments: Mapping[str, Any]) -> str | None:
    """Return why a text cannot be written to any file or be part of any prompt."""
    for name, value in arguments.items():
        try:
            str(value).encode()
        except UnicodeEncodeError:
            return f"{name}: half a surrogate pair"
    return None


def _command_error(command: str) -> str | None:
    if "\0" in command:
        return "command: holds a null character"
    too_long = len(command.encode()) > _COMMAND_BYTES
    return f"command: longer than {_COMMAND_BYTES} bytes; write a file first" if too_long else None


def _pattern_error(pattern: str) -> str | None:
    """Return why a pattern is not even compiled, or None. What is left takes little time and memory (see the constants).

    Groups beyond those of Python's `re` are refused, above all calls of groups, which have no end, and free spacing, in which
    counts could not be read. Every count multiplies, nested or not: simple, and never too little.
    """
    if len(pattern) > _PATTERN_CHARS:
        return f"pattern: longer than {_PATTERN_CHARS} characters"
    parts = list(_PATTERN_PART.finditer(pattern))
    unknown = next((part["group"] for part in parts if part["group"]), None)
    if unknown is not None:
        return f"pattern: {unknown} is not supported"
    if len(pattern) * math.prod(max(1, int(part["count"])) for part in parts if part["count"]) > _PATTERN_COPIES:
        return "pattern: repeats too much; use smaller counts, or + and *"
    return None


def clip(text: str, limit: int) -> str:
    """Return `text`, cut to `limit` characters with an ellipsis."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def list_files(workspace: Workspace, folder: str) -> str | None:
    """Return paths below `folder`, one a line; None when there is no such folder or file."""
    prefix = folder + "/" if folder else ""
    paths = [path for path in workspace.files() if path.startswith(prefix) or path == folder]
    return _capped(paths) if paths or not folder else None


def read_file(workspace: Workspace, path: str, start: int = 1, end: int | None = None) -> str | None:
    """Return the file's lines `start` to `end` (1-based, inclusive), verbatim; None when there is no such text file."""
    text = workspace.read(path)
    if text is None:
        return None
    return _capped(text.split("\n")[start - 1 : end])


def search(workspace: Workspace, pattern: str, path: str) -> str | None:
    """Return matching lines as `path:line: text`, each after up to two lines before it as `path-line- text`.

    A pattern that is not a regular expression is looked for as it is. None when `path` names nothing.

    Args:
        pattern: one that `argument_error` lets pass.

    Raises:
        TimeoutError: the expression takes too long.
        MemoryError: or too much memory.
    """
    prefix = path + "/" if path else ""
    paths = [p for p in workspace.files() if p.startswith(prefix) or p == path]
    if not paths and path:
        return None
    expression = _compiled(pattern)
    deadline = time.monotonic() + _REGEX_SECONDS
    found: list[str] = []
    hits = 0
    for name in paths:
        lines = (workspace.read(name) or "").split("\n")
        shown = 0
        for number, line in enumerate(lines, 1):
            if not expression.search(line, timeout=max(0.001, deadline - time.monotonic()), concurrent=True):
                continue
            hits += 1
            if hits <= MAX_HITS:
                before = range(max(shown, number - 1 - _CONTEXT_LINES), number - 1)
                found += [clip(f"{name}-{i + 1}- {lines[i]}", _LINE_CHARS) for i in before]
                found.append(clip(f"{name}:{number}: {line}", _LINE_CHARS))
                shown = number
    if hits > MAX_HITS:
        found.append(f"... {hits - MAX_HITS} more")
    return "\n".join(found) or "no match"


def _compiled(pattern: str) -> Any:
    """Compile the expression without caching it: some are large."""
    try:
        return regex.compile(pattern, cache_pattern=False)
    except (regex.error, ValueError, RecursionError):  # ValueError: flags that contradict each other
        return regex.compile(regex.escape(pattern), cache_pattern=False)


def _capped(lines: list[str]) -> str:
    """Join as many lines as one call may show, and say how many are left."""
    kept: list[str] = []
    room = MAX_CHARS
    for line in lines[:MAX_LINES]:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    left = len(lines) - len(kept)
    return "\n".join([*kept, f"... {left} more lines"] if left else kept)
