"""How a call ended, inferred from exit codes and the sentences in which known tools and shells report errors.

`ok` is what is not known to be anything else: a detector blames a turn for a status, so none is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from composer_replication.actions.tool_effects import EffectKind, classify_call, refusal_in
from composer_replication.types import ToolCall, ToolResult

_RUNNER = re.compile(
    r"(?:^|[;&|(\n]\s*)(?:[A-Z_][A-Z0-9_]*=\S*\s+)*(?:(?:uv|poetry|pdm|hatch|pipenv)\s+run\s+)?(?:timeout\s+\S+\s+)?(?:\S*/)?"
    r"(?:pytest|py\.test|python[\d.]*\s+(?:-\w\s+)*-m\s+(?:pytest|unittest)|tox|nox|jest|vitest|mocha|npm\s+(?:run\s+)?test|"
    r"yarn\s+(?:run\s+)?test|go\s+test|cargo\s+test|make\s+(?:test|check)|\S*manage\.py\s+test|\S*runtests\.py)(?=\s|$|[;&|)])"
)
_TESTS_FAILED = re.compile(
    r"^=*\s?(?:\d+ \w+, )*[1-9]\d* (?:failed|errors?)\b.* in [\d.]+s|^FAILED \((?:failures|errors)=|"
    r"^Tests:\s+(?:\d+ \w+, )*[1-9]\d* failed|^test result: FAILED\.|^--- FAIL: |^FAIL\t",
    re.MULTILINE,
)
_FAILED_ID = re.compile(r"^(?:FAILED|ERROR) ([^\s:]+\.py(?:::\S+)+)", re.MULTILINE)

_EXIT_CODE = (
    re.compile(r"\AExit code (\d+)\b"),  # Claude Code
    re.compile(r"^(?:Process exited with code|Exit code:) (-?\d+)$", re.MULTILINE),  # Codex
    re.compile(r"<returncode>(-?\d+)</returncode>"),  # mini-swe-agent
    re.compile(r"\[(?:The command completed|Command finished) with exit code (-?\d+)\.?\]"),  # OpenHands
)
_TIMEOUT = re.compile(
    r"\A(?:Exit code \d+\n)?Command timed out after |\bcommand timed out after \d+ (?:milli)?seconds|"
    r"\[The command (?:has )?timed out after |"
    r"\AThe (?:last )?command .{0,400}? timed out|EXECUTION TIMED OUT|was cancelled because it took more than \d+ seconds|"
    r"\bCommand '.{0,2000}?' timed out after [\d.]+ seconds",
    re.DOTALL,
)


def is_test_run(call: ToolCall) -> bool:
    """Return whether the call certainly runs a test runner, alone or in a chain of commands."""
    effect = classify_call(call.name, call.arguments)
    return effect.kind is EffectKind.TEST or (
        effect.kind is EffectKind.SHELL and _RUNNER.search(effect.command.strip()) is not None
    )


def exit_code_in(text: str) -> int | None:
    """Return the exit code that a known tool writes into its output, if it does."""
    return next((int(found[1]) for pattern in _EXIT_CODE if (found := pattern.search(text))), None)


def inferred_result(
    call: ToolCall | None,
    call_id: str,
    content: str,
    *,
    said: str | None = None,
    exit_code: int | None = None,
    failed: bool = False,
    details: Mapping[str, Any] | None = None,
) -> ToolResult:
    """Return a result with the status inferred from its text and exit code.

    Args:
        call: what was asked, None when the log does not have it.
        said: what the tool itself said, where `content` is more than that or escapes it.
        exit_code: as the log has it beside the text; else one that a known tool wrote into it.
        failed: the log itself marks it as an error.
    """
    said = content if said is None else said
    effect = None if call is None else classify_call(call.name, call.arguments)
    command = effect.command if effect is not None and effect.kind is EffectKind.SHELL else None
    code = exit_code if exit_code is not None else exit_code_in(said) if command is not None else None
    inferred: dict[str, Any] = {} if code is None else {"exit_code": code}
    status = "ok"
    if call is not None and call.error is not None:
        status = "malformed_call"
    elif call is not None and is_test_run(call) and _TESTS_FAILED.search(said):
        status = "tests_failed"
        if ids := list(dict.fromkeys(_FAILED_ID.findall(said))):
            inferred["failed"] = ids
    elif command is not None and _TIMEOUT.search(said):
        status = "timeout"
    elif code is not None and code != 0:
        status = "out_of_memory" if code == 137 and "Killed" in said else "command_failed"
    elif code is None:
        status = _by_text(call, command, said, failed)
    return ToolResult(
        call_id=call_id, name=call.name if call else "", content=content, status=status, details={**inferred, **(details or {})}
    )


def _by_text(call: ToolCall | None, command: str | None, said: str, failed: bool) -> str:
    name = next(iter(command.split()), "") if command is not None else "" if call is None else call.name
    return refusal_in(said, name, shell=command is not None) or ("command_failed" if failed else "ok")
