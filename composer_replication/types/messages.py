"""Chat messages, tools, calls and results, in the form that chat templates read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, Required, TypeAlias, TypedDict


class Message(TypedDict, total=False):
    """One chat message in the OpenAI form that Hugging Face chat templates read."""

    role: Required[str]
    """`system`, `user`, `assistant` or `tool`."""
    content: Required[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    """Assistant only: `{"id", "type": "function", "function": {"name", "arguments": dict}}`."""
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


ToolSchema: TypeAlias = dict[str, Any]
"""A tool in the OpenAI form: `{"type": "function", "function": {"name", "description", "parameters": JSON Schema}}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call as parsed from a turn's text."""

    call_id: str
    name: str
    """Empty when the markup could not be parsed."""
    arguments: Mapping[str, Any]
    error: str | None = None
    """Why the call could not be parsed (bad JSON, no name), or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The environment's answer to one tool call."""

    call_id: str
    name: str
    content: str
    """The text shown to the policy. Deterministic (no durations, no temporary paths), except for the output of shell commands."""
    status: str = "ok"
    """`ok`, or the kind of error: `malformed_call`, `unknown_tool`, `invalid_arguments`, `path_not_found`, `path_not_editable`,
    `edit_not_applied`, `tests_failed`, `command_failed`, `timeout`, `out_of_memory`."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Structured evidence for detectors, e.g. `{"failed": [ids], "passed": [ids]}`."""

    @property
    def carried_out(self) -> bool:
        """True when the call was carried out, whatever the tests said then."""
        return self.status in ("ok", "tests_failed")
