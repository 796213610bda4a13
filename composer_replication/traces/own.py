"""States of the trajectories this framework rolled out itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from composer_replication.actions import Call, render_action
from composer_replication.tokens import assistant_message, parse_tool_calls
from composer_replication.traces.states import TraceState
from composer_replication.types import Trajectory, Turn

__all__ = ["state_id", "states_from_trajectories"]


def state_id(trajectory_id: str, turn: int) -> str:
    """The id of a trajectory's state before turn `turn` (0-based)."""
    return f"{trajectory_id}#{turn}"


def states_from_trajectories(trajectories: Sequence[Trajectory]) -> list[TraceState]:
    """One state per turn that sampled anything, in order: opening messages, earlier turns with results, the next action.

    A turn whose only calls could not be parsed appears with its raw text, and their results as tool messages.
    """
    states: list[TraceState] = []
    for trajectory in trajectories:
        prefix: list[dict[str, Any]] = [dict(m) for m in trajectory.messages]
        for index, turn in enumerate(trajectory.turns):
            message = _turn_message(turn, index)
            if turn.action_ids:
                states.append(_state(trajectory, index, list(prefix), message))
            prefix.append(message)
            prefix.extend({"role": "tool", "content": r.content, "tool_call_id": r.call_id, "name": r.name} for r in turn.results)
    return states


def _state(trajectory: Trajectory, index: int, prefix: list[dict[str, Any]], message: dict[str, Any]) -> TraceState:
    wire = message.get("tool_calls", [])
    calls = [Call(c["function"]["name"], c["function"]["arguments"]) for c in wire]
    state = TraceState(
        state_id=state_id(trajectory.trajectory_id, index),
        messages=prefix,
        student_action=render_action(message["content"], calls),
        tools=list(trajectory.tools),
        task_id=trajectory.task_id,
        trajectory_id=trajectory.trajectory_id,
        turn=index,
    )
    if wire:
        state["student_tool_calls"] = wire
    return state


def _turn_message(turn: Turn, index: int) -> dict[str, Any]:
    """The turn as an assistant message; text whose calls all failed to parse stays as it was written."""
    content, _ = parse_tool_calls(turn.text, turn=index)
    understood = any(call.error is None for call in turn.tool_calls)
    return dict(assistant_message(content if understood or not turn.tool_calls else turn.text.strip(), turn.tool_calls))
