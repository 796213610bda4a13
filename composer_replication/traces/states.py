"""The unit of replay: one turn of a trace, with exactly what the agent had seen before it."""

from __future__ import annotations

from typing import Any, Required, TypedDict

from composer_replication.types import ToolSchema

__all__ = ["TraceState"]


class TraceState(TypedDict, total=False):
    """One step of a frozen trace."""

    state_id: Required[str]
    messages: Required[list[dict[str, Any]]]
    """The conversation up to the step, in the OpenAI form (see `composer_replication.types.Message`)."""
    student_action: Required[str]
    """What the agent did next, as text: one JSON line per tool call, or the text of its answer."""
    student_tool_calls: list[dict[str, Any]]
    """The same calls as `Message["tool_calls"]` entries; without this key they are read from `student_action`."""
    tools: list[ToolSchema]
    task_id: str
    trajectory_id: str
    turn: int
    """0-based turn of the trajectory."""
    student_entropy: float
    """Mean entropy of the policy over the tokens of its action, in nats. Only the model that acted can say
    (`composer_replication.causal_lm.action_entropies`); absent from other agents' traces."""
    findings: list[str]
    """Kinds of error that detectors found in the action (`composer_replication.hints.detect`); absent where none looked."""
