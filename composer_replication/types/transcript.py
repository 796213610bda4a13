"""Finished conversations of any agent: the input of detectors, hints, gates and replay.

A `Transcript` is what they need of one. Two classes are one: `types.Trajectory`, which this framework rolled out and which
holds the policy's token ids, and `Trace`, read from another agent's log: text, and the exact context of every turn, but no ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from composer_replication.types import Message, Reward, ToolCall, ToolResult, ToolSchema


class TranscriptTurn(Protocol):
    """One model call and what the environment answered."""

    @property
    def text(self) -> str: ...

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]: ...

    @property
    def results(self) -> tuple[ToolResult, ...]: ...


class Transcript(Protocol):
    """One agent's work on one task, from its opening messages to its end."""

    @property
    def trajectory_id(self) -> str: ...

    @property
    def task_id(self) -> str: ...

    @property
    def messages(self) -> tuple[Message, ...]: ...

    @property
    def tools(self) -> tuple[ToolSchema, ...]: ...

    @property
    def turns(self) -> Sequence[TranscriptTurn]: ...

    @property
    def reward(self) -> Reward | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTurn:
    """One model call of a foreign agent."""

    context: tuple[Message, ...]
    """Exactly the messages the model had seen when it answered, in order; nothing spliced in, nothing left out."""
    text: str
    """The visible text of the answer: no tool calls, no reasoning."""
    tool_calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    """Results of its calls, as the model then read them; `status` is inferred from exit codes and known error texts, else
    `ok`."""
    reasoning: str | None = None
    """Its thinking, where the log has it."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further facts the log records about this call: `model`, `timestamp`, `usage`, `usd`, `token_ids`, `logprobs`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One line of a foreign agent's work: side chains and abandoned branches are separate traces, or dropped and counted."""

    trajectory_id: str
    """Unique among the traces of one import."""
    format: str
    """The reader's name, e.g. `claude-code`."""
    turns: tuple[TraceTurn, ...]
    messages: tuple[Message, ...] = ()
    """The opening messages: those before the first turn."""
    tools: tuple[ToolSchema, ...] = ()
    """The tools the agent could call; empty when its log does not say."""
    task_id: str = ""
    agent: str = ""
    """Name and version of the agent, as far as the log records them."""
    model: str = ""
    reward: Reward | None = None
    """1 when the log says the work was right, 0 when it says it was wrong, None when it says nothing."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further facts the log records about the whole run: `cwd`, `git_branch`, `usd`, `exit_status`, `patch`, ..."""
