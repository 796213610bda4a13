"""Effects of tool calls on a repository, inferred from name and arguments, for the tools of this framework and of common agents.

Detectors ask it what was read, changed or run; the comparison of actions asks it whether two calls could do the same. It guesses
nothing: a call of a tool it does not know is `EffectKind.OTHER`.

Known are this framework's tools (`envs.tools`); `Read`, `Edit`, `MultiEdit`, `Write`, `Grep`, `Glob`, `LS`, `Bash` (Claude Code);
`shell`, `local_shell`, `shell_command`, `container.exec`, `exec_command`, `apply_patch` (Codex); `run_shell_command` (Gemini);
`execute_bash`, `terminal`, `str_replace_editor`, `file_editor`, `str_replace_based_edit_tool`, `finish` (OpenHands, SWE-agent,
Anthropic's editor); `bash`, `submit` (SWE-agent, mini-swe-agent).

`refusal_in` knows the fixed sentences with which these tools refuse a call.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class EffectKind(StrEnum):
    """The purpose of a call."""

    READ = "read"
    SEARCH = "search"
    LIST = "list"
    EDIT = "edit"
    """Changes part of a file."""
    WRITE = "write"
    """Makes or replaces a whole file."""
    PATCH = "patch"
    """Changes several files by one patch."""
    SHELL = "shell"
    TEST = "test"
    """Runs the task's tests with a dedicated tool; a shell command that runs tests is `SHELL`."""
    SUBMIT = "submit"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Replacement:
    """One text that becomes another."""

    old: str
    new: str
    everywhere: bool = False
    """Every occurrence; else `old` has to occur exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEffect:
    """A call, understood."""

    kind: EffectKind
    path: str = ""
    """POSIX path that is read, listed or changed, normalised, as the call gives it (relative or absolute); empty for none."""
    pattern: str = ""
    """Pattern of a search, or of a listing by pattern."""
    lines: tuple[int | None, int | None] | None = None
    """First and last line of a READ, 1-based; None for the whole file, and for an end that is not given."""
    replacements: tuple[Replacement, ...] = ()
    """Replacements of an EDIT, in order."""
    insert_after: tuple[int, str] | None = None
    """Position and text of an EDIT that inserts after a line (0: at the top)."""
    content: str = ""
    """The whole file of a WRITE, or the text of a PATCH."""
    command: str = ""
    """Command of a SHELL call, as one string for a shell."""
    cwd: str = ""

    @property
    def changes(self) -> bool:
        """True when the call itself changes files; a SHELL call may do so too."""
        return self.kind in (EffectKind.EDIT, EffectKind.WRITE, EffectKind.PATCH)


def classify_call(name: str, arguments: Mapping[str, Any]) -> ToolEffect:
    """Classify what a call does. Missing arguments or ones of the wrong type make it `EffectKind.OTHER`: such a call does
    nothing."""
    known = _TOOLS.get(name)
    if known is None:
        return ToolEffect(kind=EffectKind.OTHER)
    try:
        return known(arguments)
    except (LookupError, TypeError, RecursionError):
        return ToolEffect(kind=EffectKind.OTHER)


def plain_path(path: str) -> str:
    """Return the path without `./` in front, `/./` and doubled slashes. `..`, links and a closing slash are kept.

    `./-` stays, for `-` alone may mean the standard input; so does `//` in front, which POSIX leaves to the system.
    """
    if path.startswith("//") and not path.startswith("///"):
        return path
    short = re.sub(r"/(?:\./|/)+", "/", path)
    bare = short.removeprefix("./")
    return short if not bare or bare[0] in "-/" else bare


def _text(arguments: Mapping[str, Any], *names: str) -> str:
    """Return the first of these arguments that is present. Raises KeyError for none, TypeError when it is not text."""
    for name in names:
        if arguments.get(name) is not None:
            value = arguments[name]
            if not isinstance(value, str):
                raise TypeError(name)
            return value
    raise KeyError(names[0])


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("an object")
    return value


def _optional(arguments: Mapping[str, Any], *names: str) -> str:
    return _text(arguments, *names) if any(arguments.get(name) is not None for name in names) else ""


def _number(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("a line number")
    return value


def _flag(value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise TypeError("true or false")
    return bool(value)


def _path(arguments: Mapping[str, Any], *names: str) -> str:
    text = _text(arguments, *names).strip()
    return posixpath.normpath(text) if text else ""


def _folder(arguments: Mapping[str, Any]) -> str:
    text = _optional(arguments, "path", "dir", "directory").strip()
    return posixpath.normpath(text) if text else ""


def _read(a: Mapping[str, Any]) -> ToolEffect:
    first, last = _number(a.get("start")), _number(a.get("end"))
    if a.get("offset") is not None or a.get("limit") is not None:
        first = _number(a.get("offset")) or None
        limit = _number(a.get("limit"))
        last = None if limit is None else (first or 1) + limit - 1
    whole = first is None and last is None
    return ToolEffect(
        kind=EffectKind.READ, path=_path(a, "path", "file_path", "filename"), lines=None if whole else (first, last)
    )


def _edit(a: Mapping[str, Any]) -> ToolEffect:
    pairs = [_object(pair) for pair in a.get("edits", [a])]
    replacements = tuple(
        Replacement(
            _text(pair, "old", "old_string", "old_str"),
            _optional(pair, "new", "new_string", "new_str"),
            _flag(pair.get("replace_all")),
        )
        for pair in pairs
    )
    return ToolEffect(kind=EffectKind.EDIT, path=_path(a, "path", "file_path"), replacements=replacements)


def _write(a: Mapping[str, Any]) -> ToolEffect:
    return ToolEffect(kind=EffectKind.WRITE, path=_path(a, "path", "file_path"), content=_text(a, "content", "file_text"))


def _patch(a: Mapping[str, Any]) -> ToolEffect:
    return ToolEffect(kind=EffectKind.PATCH, content=_text(a, "patch", "input"))


def _search(a: Mapping[str, Any]) -> ToolEffect:
    return ToolEffect(kind=EffectKind.SEARCH, pattern=_text(a, "pattern", "query", "search_term"), path=_folder(a))


def _list(a: Mapping[str, Any]) -> ToolEffect:
    return ToolEffect(kind=EffectKind.LIST, path=_folder(a), pattern=_optional(a, "pattern"))


def _shell(a: Mapping[str, Any]) -> ToolEffect:
    """Return a command as one string; Codex gives words, usually `["bash", "-lc", SCRIPT]`."""
    given: Any = next((a[name] for name in ("command", "cmd", "action") if a.get(name) is not None), None)
    given = given["command"] if isinstance(given, Mapping) else given
    if isinstance(given, str):
        command = given
    else:
        words = [str(word) for word in given]
        wrapped = len(words) == 3 and posixpath.basename(words[0]) in ("bash", "sh", "zsh") and words[1] in ("-c", "-lc")
        command = words[2] if wrapped else shlex.join(words)
    return ToolEffect(kind=EffectKind.SHELL, command=command, cwd=_optional(a, "workdir", "cwd"))


def _editor(a: Mapping[str, Any]) -> ToolEffect:
    """Classify a tool with several commands: view, create, str_replace, insert, undo_edit."""
    match a["command"]:
        case "view":
            span = a.get("view_range")
            lines = None if span is None else (_number(span[0]), None if span[1] == -1 else _number(span[1]))
            return ToolEffect(kind=EffectKind.READ, path=_path(a, "path"), lines=lines)
        case "create":
            return _write(a)
        case "str_replace":
            return _edit(a)
        case "insert":
            after = _number(a["insert_line"])
            return ToolEffect(
                kind=EffectKind.EDIT, path=_path(a, "path"), insert_after=(after or 0, _text(a, "new_str", "insert_text"))
            )
    return ToolEffect(kind=EffectKind.OTHER)


def _plain(kind: EffectKind) -> Callable[[Mapping[str, Any]], ToolEffect]:
    return lambda _: ToolEffect(kind=kind)


_SHELLS = (
    *("bash", "Bash", "shell", "local_shell", "shell_command", "container.exec", "exec_command"),
    *("run_shell_command", "execute_bash", "terminal"),
)
_TOOLS: Mapping[str, Callable[[Mapping[str, Any]], ToolEffect]] = {
    **dict.fromkeys(("read_file", "Read"), _read),
    **dict.fromkeys(("edit_file", "Edit", "MultiEdit"), _edit),
    **dict.fromkeys(("write_file", "Write"), _write),
    "apply_patch": _patch,
    **dict.fromkeys(("search", "Grep"), _search),
    **dict.fromkeys(("list_files", "LS", "Glob"), _list),
    **dict.fromkeys(_SHELLS, _shell),
    **dict.fromkeys(("str_replace_editor", "str_replace_based_edit_tool", "file_editor"), _editor),
    "run_tests": _plain(EffectKind.TEST),
    **dict.fromkeys(("submit", "finish"), _plain(EffectKind.SUBMIT)),
}

_OPENING = r"(?:<tool_use_error>)?(?:ERROR:\n|Error: )?\s*"
_REFUSALS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "unknown_tool",
        re.compile(
            _OPENING + r"(?:No such tool available|unsupported (?:custom tool )?call|Tool '?[\w.-]+'? not found|"
            r"[\w.-]+ is unavailable in (?:Default|Plan|Code|Execute|Pair Programming) mode)"
        ),
    ),
    (
        "invalid_arguments",
        re.compile(
            _OPENING + r"(?:InputValidationError|failed to parse function arguments|Error validating |"
            r"Parameter `\w+` is required|Missing required argument|The path \S{1,300} is not an absolute path|"
            r"File content \([^)\n]{1,40}\) exceeds maximum allowed|"
            r"Invalid `\w+` parameter(?!: \S{1,300}\. The path \S{1,300} does not exist))"
        ),
    ),
    (
        "edit_not_applied",
        re.compile(
            _OPENING + r"(?:String to replace not found in file|No changes to make|"
            r"Found \d+ matches of the string to replace|File has not been read yet|File has been modified since read|"
            r"No replacement was performed|File already exists at|apply_patch verification failed|Failed to find )"
            r"|(?:<tool_use_error>)?.{0,300}?(?:did not appear verbatim in|Multiple occurrences of old_str)",
            re.DOTALL,
        ),
    ),
    (
        "path_not_found",
        re.compile(
            _OPENING + r"(?:File does not exist|Path does not exist|Directory does not exist|"
            r"The (?:path|parent directory) \S{1,300} does not exist|"
            r"Invalid `path` parameter: \S{1,300}\. The path \S{1,300} does not exist|"
            r"ENOENT: no such file or directory|Ran into \[Errno 2\] |File \S+ not found)"
        ),
    ),
)
"""Sentences with which a tool begins its answer."""
_OF_EDITORS = frozenset({"edit_not_applied", "path_not_found"})
"""Kinds that a shell's output does not have: it may be any file's text."""
_PATCHED = "apply_patch "
"""Codex applies patches that a command holds, and answers itself."""
_ADDED = frozenset(
    "open goto scroll_up scroll_down create edit insert search_file search_dir find_file submit str_replace_editor".split()  # noqa: SIM905
)
"""Commands that SWE-agent adds to its shell, or offers as tools."""
_REFUSALS_OF_ADDED: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "edit_not_applied",
        re.compile(
            r"\s*(?:Your proposed edit has introduced new syntax error|Your edit was not applied|No file opened\.|"
            r"Your search and replace strings are the same|Error: Text not found: )"
        ),
    ),
    ("invalid_arguments", re.compile(r"\s*(?:Usage: |goto allows only one line number|Error: <\w+> must be )")),
    ("path_not_found", re.compile(r"\s*(?:(?:Error: )?(?:File|Directory)(?: name)? \S{1,300} not found\b)")),
    ("command_failed", re.compile(r"\s*Wrong flag!")),
)


def refusal_in(answer: str, name: str, *, shell: bool) -> str | None:
    """Return the kind of refusal that an answer begins with, if it is a sentence of a known tool.

    Args:
        name: the tool or, in a shell, the first program of the command.
        shell: a command was run.
    """
    plain = shell and not answer.startswith(_PATCHED)
    known = (one for one in _REFUSALS if not plain or one[0] not in _OF_EDITORS)
    added = _REFUSALS_OF_ADDED if name in _ADDED else ()
    return next((kind for kind, pattern in (*known, *added) if pattern.match(answer)), None)
