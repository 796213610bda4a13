"""A trace of verifiers as our trajectory, token for token.

verifiers keeps a rollout as a graph of messages, each with the tokens it adds; a path from the root to a leaf is what the policy
saw, and one training sample of PRIME-RL. Read by attribute: neither framework is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from composer_replication.traces.outcome import inferred_result
from composer_replication.traces.recorder import native_call
from composer_replication.types import Message, StopReason, ToolCall, ToolResult, ToolSchema, Trajectory, Turn

RESULTS = "composer_results"
"""Key of a trace's `info`: status and details of a call's result by its id, as our environment gave them."""

_STOPS = {
    "max_turns": StopReason.MAX_TURNS,
    "max_output_tokens": StopReason.TRAJECTORY_TOKENS,
    "max_input_tokens": StopReason.CONTEXT_TOKENS,
    "max_total_tokens": StopReason.CONTEXT_TOKENS,
    "context_length": StopReason.CONTEXT_TOKENS,
}


def trajectory_of(trace: Any, nodes: Sequence[Any], *, number: int = 0) -> Trajectory | None:
    """Return one path through a trace as a trajectory: `nodes` run from the root to a leaf, the `number`-th of the trace.

    `context_ids(len(turns))` are the path's token ids, so that a position in one is the same position in the other. None where
    the path cannot be one: nothing was sampled or nothing stands before it, tokens of one answer do not follow each other, or
    not every one has its log-prob.
    """
    first = next((i for i, node in enumerate(nodes) if node.sampled), None)
    if first is None:
        return None
    turns: list[Turn] = []
    between: list[int] = []  # since the last sampled token
    prompt: tuple[int, ...] = ()
    for i, node in enumerate(nodes):
        span = _sampled_span(node) if node.sampled else None
        if span is None:
            between += node.token_ids
            continue
        start, stop = span
        between += node.token_ids[:start]
        if turns:
            turns[-1] = replace(turns[-1], observation_ids=tuple(between))
        else:
            prompt = tuple(between)
        logprobs = tuple(node.logprobs)
        if len(logprobs) != stop - start:
            return None
        calls = _calls(node.message)
        turn = Turn(
            action_ids=tuple(node.token_ids[start:stop]),
            logprobs=logprobs,
            text=_text(node.message.content),
            tool_calls=calls,
            results=_results(calls, nodes[i + 1 :], trace.info.get(RESULTS, {})),
        )
        turns.append(turn)
        between = list(node.token_ids[stop:])
    if not turns or not prompt:
        return None
    turns[-1] = replace(turns[-1], observation_ids=tuple(between))
    found = Trajectory(
        trajectory_id=f"{trace.id}/{number}",
        task_id=task_id_of(trace),
        policy_version=0,
        messages=tuple(Message(role=node.message.role, content=_text(node.message.content)) for node in nodes[:first]),
        tools=tuple(_tool(tool) for tool in trace.tools),
        prompt_ids=prompt,
        turns=tuple(turns),
        stop_reason=_STOPS.get(trace.stop_condition or "", StopReason.SUBMITTED),
        temperature=1.0,
        reward=float(trace.reward),
    )
    whole = [token for node in nodes for token in node.token_ids]
    return found if list(found.context_ids(len(turns))) == whole else None


def task_id_of(trace: Any) -> str:
    """Return the id of one of our tasks, as the taskset of this framework names it; an empty text for other tasks."""
    return str(getattr(trace.task.data, "task_id", "") or "")


def _sampled_span(node: Any) -> tuple[int, int] | None:
    """Return where the sampled tokens of a node begin and end; None where there are none."""
    marked = [i for i, sampled in enumerate(node.mask) if sampled]
    return (marked[0], marked[-1] + 1) if marked else None


def _calls(message: Any) -> tuple[ToolCall, ...]:
    calls = getattr(message, "tool_calls", None) or ()
    return tuple(native_call(call.id, call.name, call.arguments)[0] for call in calls)


def _results(calls: Sequence[ToolCall], after: Sequence[Any], known: Mapping[str, Any]) -> tuple[ToolResult, ...]:
    """Return the results of a turn's calls: the tool messages before the next answer.

    Tools of other agents only say in their text how a call ended.
    """
    asked = {call.call_id: call for call in calls}
    found: list[ToolResult] = []
    for node in after:
        if node.sampled:
            break
        if node.message.role == "tool":
            call_id, content = node.message.tool_call_id, _text(node.message.content)
            call = asked.get(call_id)
            if call_id in known:
                found.append(ToolResult(call_id=call_id, name=call.name if call else "", content=content, **known[call_id]))
            else:
                found.append(inferred_result(call, call_id, content))
    return tuple(found)


def _text(content: Any) -> str:
    """Return the text of a message's content; pictures have none."""
    if isinstance(content, list):
        return "\n".join(part.text for part in content if part.type == "text")
    return content or ""


def _tool(tool: Any) -> ToolSchema:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
