"""The unit of replay: one turn of a trace, with exactly what the agent had seen before it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Required, TypedDict

from composer_replication.actions.calls import Call, render_action
from composer_replication.traces.recorder import INCOMPLETE, RAW, SCRIPT_TOOL, SCRIPTS, wire_call
from composer_replication.types import ToolCall, ToolSchema
from composer_replication.types.transcript import Trace, TraceTurn

SAMPLED = "sampled_text"
"""Detail of a turn of ours: everything that the policy wrote, markup included."""
TEXT_ACTIONS = "text_actions"
"""Detail of a trace, true when the agent writes its actions in its text instead of calling tools: then the text is the action."""


class TraceState(TypedDict, total=False):
    """One step of a frozen trace."""

    state_id: Required[str]
    messages: Required[list[dict[str, Any]]]
    """The conversation up to the step, in the OpenAI form (see `composer_replication.types.Message`)."""
    student_action: Required[str]
    """The agent's next action as text: one JSON line per tool call, or the text of its answer. An action with a call that cannot
    be understood is text, not calls: for our policy the text it wrote, for another agent those lines with the call's own
    words."""
    student_tool_calls: list[dict[str, Any]]
    """The same calls as `Message["tool_calls"]` entries; without this key they are read from `student_action`."""
    tools: list[ToolSchema]
    text_actions: bool
    """The agent calls no tools: its action is the shell command in the only fenced block of its text."""
    task_id: str
    trajectory_id: str
    turn: int
    """0-based turn of the trajectory."""
    student_entropy: float
    """Mean entropy of the policy over the tokens of its action, in nats. Only the model that acted can say
    (`composer_replication.loss.forward.action_entropies`); absent from other agents' traces."""
    findings: list[str]
    """Kinds of error that detectors found in the action (`composer_replication.hints.detect`); absent where none looked."""
    student_score: float
    """Probability that the action is good, as a process reward model has it; absent where none was asked."""


def state_id(trajectory_id: str, turn: int) -> str:
    """Return the id of a trajectory's state before turn `turn` (0-based)."""
    return f"{trajectory_id}#{turn}"


def place_of(state: str) -> tuple[str, int]:
    """Return the trajectory id and the turn of a `state_id`."""
    trajectory_id, turn = state.rsplit("#", 1)
    return trajectory_id, int(turn)


def states_from_traces(traces: Iterable[Trace]) -> list[TraceState]:
    """Return one state per turn whose exact context is known, in order.

    Left out are turns before which the model saw nothing, and those marked `incomplete` in their details: something that it saw
    is not in the log.
    """
    return [
        _state(trace, index, turn)
        for trace in traces
        for index, turn in enumerate(trace.turns)
        if turn.context and INCOMPLETE not in turn.details
    ]


def lacks_tools(trace: Trace) -> bool:
    """Return whether the agent called tools that its log does not name: a teacher that is shown no tools cannot call them."""
    return not trace.tools and not trace.details.get(TEXT_ACTIONS) and any(turn.tool_calls for turn in trace.turns)


def _state(trace: Trace, index: int, turn: TraceTurn) -> TraceState:
    text = bool(trace.details.get(TEXT_ACTIONS))
    broken = not text and any(call.error is not None for call in turn.tool_calls)
    calls = [] if text or broken else _spoken_calls(turn)
    state = TraceState(
        state_id=state_id(trace.trajectory_id, index),
        messages=[dict(message) for message in turn.context],
        student_action=_broken(turn)
        if broken
        else render_action(turn.text, [Call(c.name, c.arguments) for c in calls]) or _broken(turn),
        tools=list(trace.tools),
        task_id=trace.task_id,
        trajectory_id=trace.trajectory_id,
        turn=index,
    )
    if trace.details.get(TEXT_ACTIONS):
        state["text_actions"] = True
    if calls:
        state["student_tool_calls"] = [wire_call(call) for call in calls]
    return state


def _spoken_calls(turn: TraceTurn) -> list[ToolCall]:
    """Return the calls as the model made them: those that it made from a script as the script."""
    scripts = turn.details.get(SCRIPTS, {})
    return [
        replace(call, name=SCRIPT_TOOL, arguments={"input": scripts[call.call_id]}) if call.call_id in scripts else call
        for call in turn.tool_calls
    ]


def _broken(turn: TraceTurn) -> str:
    """Return an action with a call that cannot be understood: the whole of it as text, which equals no other action."""
    sampled = turn.details.get(SAMPLED)
    if isinstance(sampled, str):
        return sampled.strip()
    raw = turn.details.get(RAW, {})
    parts = [(call.name, dict(call.arguments) if call.error is None else raw.get(call.call_id)) for call in _spoken_calls(turn)]
    return "\n".join(json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in parts)
