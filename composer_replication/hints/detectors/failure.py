"""The environment's answer to a call: whether it was carried out, and if not, which kind of error that is.

An environment of this framework says it in the result's `status`. Logs of other agents say it in text; only words that their
tools are known to answer with count, where they stand at the beginning of an answer or, for a shell, on a separate line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from composer_replication.actions.tool_effects import EffectKind, ToolEffect, refusal_in
from composer_replication.hints.detectors.shell import ShellCommand
from composer_replication.types import ToolResult

STATUSES = frozenset(
    {
        "command_failed",
        "edit_not_applied",
        "invalid_arguments",
        "malformed_call",
        "out_of_memory",
        "path_not_editable",
        "path_not_found",
        "permission_denied",
        "tests_failed",
        "timeout",
        "unknown_tool",
    }
)
"""Kinds of error that a result's status may name."""

_OWN = frozenset({"list_files", "read_file", "search", "edit_file", "write_file", "run_tests", "submit"})
"""Tools whose environment always says it in the status: what they show of a file is never an answer of the tool."""

_HEAD = 600
_TAIL = 400


def _any(alternatives: str, flags: re.RegexFlag = re.IGNORECASE | re.DOTALL) -> re.Pattern[str]:
    """Compile one pattern from many, one per line."""
    return re.compile("|".join(line.strip() for line in alternatives.splitlines() if line.strip()), flags)


_REFUSALS: Mapping[str, re.Pattern[str]] = {
    "unknown_tool": _any(
        r"""
        no such tool
        unsupported call
        unknown (?:tool|function)
        (?:tool|function) '?[\w-]+'? (?:is )?not (?:found|available)
        """
    ),
    "malformed_call": _any(
        r"""
        failed to parse (?:function |tool )?(?:call|arguments)[^:]{0,40}: (?:expected|EOF|invalid JSON|trailing)
        invalid json
        .{0,60}not valid json
        """
    ),
    "invalid_arguments": _any(
        r"""
        inputvalidationerror
        failed to parse function arguments
        missing required (?:argument|parameter)
        invalid (?:arguments|parameters) for
        parameter `?\w+`? is required
        """
    ),
    "edit_not_applied": _any(
        r"""
        string to replace not found
        found \d+ matches of the string
        no changes to make
        file has not been read yet
        file has been (?:unexpectedly )?modified since
        no replacement was performed
        apply_patch verification failed
        failed to find (?:expected lines|context)
        invalid patch
        patch failed
        (?:could not|failed to) apply patch
        no match found for replacement
        multiple occurrences of
        """
    ),
    "path_not_found": _any(
        r"""
        file does not exist
        (?:invalid `path` parameter: .{1,300}?)?the path .{1,300}? does not exist
        (?:path|directory) does not exist
        no such file or directory
        file not found
        .{0,20}ENOENT
        """
    ),
    "permission_denied": _any(
        r"""
        permission (?:to use|denied)
        .{0,20}EACCES
        operation not permitted
        .{0,80}is in a directory that is (?:denied|not allowed)
        write access .{0,40} denied
        blocked by sandbox
        """
    ),
    "timeout": _any(
        r"""
        (?:the )?command timed out
        tool (?:call )?timed out
        .{0,40}timed out after
        """
    ),
}
"""Texts with which tools refuse a call, after an opening such as `Error:`."""

_OPENING = re.compile(r"^\s*(?:<tool_use_error>|<error>)?\s*(?:(?:tool )?error:|failed:|execution error:)?\s*", re.IGNORECASE)
_EXIT = re.compile(
    r"<returncode>\s*(-?\d+)"
    r"|\"exit_code\":\s*(-?\d+)"
    r"|(?:^|\n)\[?(?:The command completed with |Command finished with |Process exited with |exited with )?"
    r"(?:exit )?(?:code|status):?\s+(-?\d+)\b",
    re.IGNORECASE,
)
_FRAME = re.compile(
    r"Script (?:completed|failed|running)[^\n]{0,80}\nWall time [^\n]{1,40}\nOutput:\n\n?(?:Script error:\n)?"
    r"|(?:[A-Z][a-z]+ [A-Za-z ]{2,20}:? .{1,80}\n){1,4}Output:\n|<returncode>-?\d+</returncode>\s*<output>\n?"
)
"""Text that Codex and mini-swe-agent put before a command's output."""
_TIMEOUT_LINE = _any(
    r"""
    (?:^|\n)\W{0,2}(?:The )?command timed out
    (?:^|\n)[^\n]{0,30}timed out after \d
    has no new output after [\d.]+ seconds
    """
)
_SHELL = r"(?:(?:/usr)?/bin/)?(?:(?:ba|z|da|k)?sh|\(eval\))(?::[a-z]+)?(?:: line \d+|: \d+|:\d+)?: "
_LISTERS = r"(?:ls|find|rg|grep|fd|tree|du|stat|wc)"
_FILE_PROGRAMS = (
    rf"(?:{_LISTERS}|cat|cd|head|tail|sed|nl|cp|mv|rm|less|diff|touch|mkdir|python[\d.]*|file|chmod|strings|xxd|od|hexdump|tac|"
    r"sort|uniq|cut|awk|tar|ln|readlink|rmdir|jq|base64|md5sum|sha256sum)"
)
_SHELL_ERRORS: Mapping[str, re.Pattern[str]] = {
    "path_not_found": _any(
        rf"""
        ^(?:{_SHELL})?{_FILE_PROGRAMS}: .{{0,300}}(?:No such file or directory|cannot access|does not exist)
        ^strings: .{{1,300}}: No such file$
        ^.{{1,200}}: cannot open `.{{1,200}}' \(No such file or directory\)
        ^{_SHELL}(?:cd: )?.{{1,200}}: No such file or directory
        ^{_SHELL}(?:cd: )?no such file or directory:
        ^ERROR: file or directory not found:
        """,
        re.MULTILINE,
    ),
    "permission_denied": _any(
        rf"^(?:{_SHELL}|[a-z][\w.-]{{0,30}}: ).{{0,300}}(?:Permission denied|Operation not permitted|Read-only file system)",
        re.MULTILINE,
    ),
    "edit_not_applied": _any(
        r"""
        ^error: (?:patch failed: |.{1,200}: patch does not apply|corrupt patch)
        ^Hunk #\d+ FAILED
        ^apply_patch verification failed
        """,
        re.MULTILINE,
    ),
    "command_failed": _any(
        rf"""
        ^{_SHELL}.{{0,200}}(?:command not found|syntax error|unexpected EOF|[Nn]ot found$|event not found|cannot execute)
        ^{_SHELL}(?:no matches found: |unmatched ["'`]|parse error near|bad pattern: )
        ^[\w./+-]{{1,60}}: command not found
        ^(?:zsh: )?command not found:
        ^/\S*python[\d.]*: (?:No module named |can't find )
        ^  File \"<(?:string|stdin)>\", line \d+\n(?:.{{0,200}}\n){{1,4}}(?:Syntax|Indentation)Error:
        ^(?:error: )?(?:unknown|unexpected|unrecognized) (?:option|argument|switch|subcommand|command)\b
        ^Error: No such (?:option|command)
        ^fatal: (?:not a git repository|pathspec|ambiguous argument|bad revision|unknown|unrecognized|invalid|no such path)
        ^error: pathspec
        ^npm (?:ERR!|error) (?:Missing script|code (?:ERESOLVE|ETARGET|E404)$)
        ^\(use -f to force removal\)$
        ^Windows Subsystem for Linux has no installed distributions
        ^Error code: (?:Bash|Wsl)/Service/
        ^.{{0,20}}Unable to acquire lock at
        ^E: Could not get lock
        ^fatal: Unable to create '.{{1,300}}\.lock': File exists
        ^sed: -e expression
        ^git: '[\w-]+' is not a git command
        ^make: \*\*\* No rule to make target
        """,
        re.MULTILINE,
    ),
}
"""Lines by which a shell and common programs say that they were called in a wrong way."""

_MISUSED = re.compile(
    r"^([\w.-]{1,30})(?: \w{1,20})?: (?:error: )?(?:(?:unrecognized|invalid|illegal|unknown|ambiguous) (?:option|arguments?\b)"
    r"|unexpected argument|the following arguments are required)",
    re.MULTILINE,
)
"""A program's complaint about its own arguments."""
_USAGE = re.compile(r"^usage: ", re.IGNORECASE | re.MULTILINE)
_BUSY = re.compile(
    r"\blisten EADDRINUSE\b|\[Errno (?:48|98)\] [Aa]ddress already in use|\bbind: [Aa]ddress already in use"
    r"|\bAddress already in use \(os error (?:48|98)\)"
)
"""A server's words for a port that another one has."""
_COMPLAINT = re.compile(rf"{_LISTERS}: .{{0,300}}(?:No such file or directory|cannot access|does not exist)")
_STATUS = re.compile(r"\[(?:The command|Command|Current working|Python interp).*|(?:Exit code|exit status):? -?\d+$")
"""Lines of the environment below or above a command's output."""


def refusal_of(result: ToolResult | None, effect: ToolEffect) -> str | None:
    """Return the kind of error that a result reports in its status or, for a tool that is not this framework's, in its first
    words."""
    if result is None:
        return None
    if result.status != "ok":
        if effect.kind is EffectKind.SHELL or result.status in STATUSES - {"command_failed"}:
            return result.status
        return _kind_of_text(result.content, result.name) or result.status
    if result.name in _OWN or effect.kind in (EffectKind.SHELL, EffectKind.TEST):
        return None
    opening = _OPENING.match(result.content)
    shows = effect.kind in (EffectKind.READ, EffectKind.SEARCH, EffectKind.LIST) and (opening is None or not opening[0].strip())
    if shows and (len(result.content) >= 300 or "\n" in result.content.strip()):
        return None  # what is shown may begin with anything: only a short answer that is all error counts
    return _kind_of_text(result.content, result.name)


def _kind_of_text(content: str, name: str) -> str | None:
    opening = _OPENING.match(content)
    head = content[opening.end() if opening else 0 :][:_HEAD]
    found = next((kind for kind, pattern in _REFUSALS.items() if pattern.match(head)), None)
    return found or refusal_in(content, name, shell=False)


def shell_answer(result: ToolResult) -> tuple[str, int | None]:
    """Return the output of a shell command and its exit status, read from the log's fields or the answer's first or last
    words."""
    text, code = result.content, None
    frame = _FRAME.match(text)
    begin = frame.end() if frame else 0
    if text.startswith('{"', begin) and (answer := _codex_answer(text[begin:])) is not None:
        (text, code), frame = answer, None
    for name in ("returncode", "exit_code", "exitCode"):
        code = result.details.get(name, code)
    if not isinstance(code, int) or isinstance(code, bool):
        parts = (text,) if len(text) <= _TAIL else (text[:200], text[-_TAIL:])
        found = [code for part in parts for code in _EXIT.findall(part)]
        code = int("".join(found[-1])[:10]) if found else None
    return text[frame.end() :].removesuffix("</output>") if frame is not None else text, code


def _codex_answer(text: str) -> tuple[str, int | None] | None:
    """Return output and exit status of an answer in JSON, as older versions of Codex and its code mode have it."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    told = data.get("metadata", data)
    if not isinstance(data.get("output"), str) or not isinstance(told, dict) or "exit_code" not in told:
        return None
    code = told["exit_code"]
    return str(data["output"]), code if isinstance(code, int) else None


def shell_refusal(status: str, shown: str, command: ShellCommand, exit_code: int | None) -> str | None:
    """Return the kind of error of a command that certainly failed through its own fault, or None.

    A failing test run, check or search says something about the code, not about the command.
    """
    if status in ("timeout", "out_of_memory"):
        return status
    if exit_code == 0:
        return None
    silent = exit_code is None and status == "ok"
    if exit_code is None and not command.looks:
        refused = refusal_in(shown, next(iter(command.programs), ""), shell=True)
        if refused is not None:
            return refused
    text = _ends(shown.replace("\0", ""))  # UTF-16, as some programs of Windows write it
    if silent and command.looks and not command.checks:
        # a file's content is not the shell's message; the program's own error would come first
        first = text.partition("\n")[0]
        named = any(f"{program}:" in first[:60] for program in command.programs)
        text = first if named or ("file" in command.programs and ": cannot open `" in first) else ""
    if (exit_code == 124 and not command.checks) or (exit_code in (None, -1, 124) and _TIMEOUT_LINE.search(text or shown[:80])):
        return "timeout"
    for kind, pattern in _SHELL_ERRORS.items():
        if pattern.search(text) and not (kind == "path_not_found" and _finds_some(shown, command)):
            return kind
    if not command.tests and _BUSY.search(text):
        return "command_failed"
    misused = any(program in command.programs or program.endswith(".py") for program in _MISUSED.findall(text))
    if misused or exit_code in (126, 127) or (exit_code == 2 and _USAGE.search(text)):
        return "command_failed"
    return status if status in STATUSES - {"command_failed", "tests_failed"} else None


def _finds_some(shown: str, command: ShellCommand) -> bool:
    """Return whether a listing of several paths shows some and only complains about others: that is how one asks which there
    are."""
    if command.places < 2:
        return False
    rest = [line for line in shown.split("\n") if line.strip() and not _COMPLAINT.match(line) and not _STATUS.match(line)]
    return bool(rest) and not _SHELL_ERRORS["path_not_found"].search("\n".join(rest))


def _ends(text: str) -> str:
    """Return the first and last lines of an answer: a shell reports errors there, and a long middle is the command's output."""
    if len(text) < 2_000:
        return text
    return text[:1_000] + "\n" + text[-1_000:]
