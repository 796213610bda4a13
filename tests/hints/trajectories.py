"""Trajectories made the way a rollout makes them: opening rendered once, turns as ids, observations as rendered deltas."""

from __future__ import annotations

import json
from functools import cache

from composer_replication.tokens import ChatRenderer, byte_level_tokenizer, parse_tool_calls
from composer_replication.types import StopReason, ToolResult, Trajectory, Turn


def tool(name, required=(), optional=()):
    properties = {n: {"type": "string"} for n in (*required, *optional)}
    parameters = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = (
    tool("read_file", ["path"]),
    tool("edit_file", ["path", "old", "new"]),
    tool("write_file", ["path", "content"]),
    tool("run_tests", optional=["path"]),
    tool("submit"),
)


@cache
def renderer() -> ChatRenderer:
    return ChatRenderer(byte_level_tokenizer())


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def ok(content="done", **details):
    return (content, "ok", details)


def bad(status, content="", **details):
    return (content or status, status, details)


def trajectory(*turns, reward=0.0, task="t0", sibling=0, instruction="Write the body of stowage."):
    """Each turn is `(text, result, ...)`, one `(content, status, details)` per tool call in the text."""
    chat = renderer()
    messages = ({"role": "system", "content": "You fix code."}, {"role": "user", "content": instruction})
    made = []
    for index, (text, *results) in enumerate(turns):
        ids = (*chat.template.encode(text), chat.end_of_turn_id)
        _, calls = parse_tool_calls(text, turn=index)
        answers = tuple(
            ToolResult(call_id=c.call_id, name=c.name, content=content, status=status, details=details)
            for c, (content, status, details) in zip(calls, results, strict=True)
        )
        replies = [{"role": "tool", "content": a.content, "name": a.name, "tool_call_id": a.call_id} for a in answers]
        last = index == len(turns) - 1
        observation = () if last else chat.delta_ids(replies, ended=True)
        made.append(
            Turn(
                action_ids=ids,
                logprobs=(-0.5,) * len(ids),
                text=text,
                tool_calls=calls,
                results=answers,
                observation_ids=observation,
            )
        )
    return Trajectory(
        trajectory_id=f"0/{task}/{sibling}",
        task_id=task,
        policy_version=0,
        messages=messages,
        tools=TOOLS,
        prompt_ids=chat.prompt_ids(messages, TOOLS),
        turns=tuple(made),
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=reward,
    )
