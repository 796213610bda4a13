"""SWE-agent's `.traj` files (https://swe-agent.com): one step per model call, and with it, as `query`, what the model saw.

Logs before 1.1 have no `query`; their `history` is what the last calls saw, but history processors shorten what earlier ones had
seen. Such turns are marked incomplete wherever a processor was at work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from composer_replication.traces.outcome import inferred_result
from composer_replication.traces.reader import FileReader, Item, of_document
from composer_replication.traces.readers.fields import native_calls, objects_in, present, section, string, text_of
from composer_replication.traces.recorder import INCOMPLETE, ConversationRecorder, native_call, spoken
from composer_replication.traces.source import Problem
from composer_replication.traces.states import TEXT_ACTIONS
from composer_replication.types import Message
from composer_replication.types.transcript import Trace

NO_QUERY = "the log has no query of this step"


def _convert(record: Any, path: Path) -> Iterator[Item]:
    steps = _steps(record) if isinstance(record, dict) else None
    if steps is None:
        yield Problem(path, "no list of steps with an action and an observation")
        return
    player = _SweAgentPlayer(objects_in(record.get("history")))
    for place, step in enumerate(steps):
        player.step(step, steps[place + 1] if place + 1 < len(steps) else {})
    yield _trace(path, record, player)


def _steps(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    steps = record.get("trajectory")
    if not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps):
        return None
    return steps if {"action", "observation", "response"} <= steps[0].keys() else None


def _trace(path: Path, record: Mapping[str, Any], player: _SweAgentPlayer) -> Trace:
    info = section(record, "info")
    config = record.get("replay_config")
    version = string(info, "swe_agent_version")
    return player.recorder.trace(
        path.name.removesuffix(".traj"),
        READER.name,
        task_id=string(record, "instance_id") or path.name.removesuffix(".traj"),
        agent=f"swe-agent {version}".strip(),
        model=string(config, "agent", "model", "name") if isinstance(config, dict) else "",
        details=present(
            exit_status=string(info, "exit_status"),
            patch=string(info, "submission"),
            usd=section(info, "model_stats").get("instance_cost"),
            environment=string(record, "environment"),
        )
        | ({} if player.native else {TEXT_ACTIONS: True}),
    )


class _SweAgentPlayer:
    """Plays the steps of one session into its recorder."""

    def __init__(self, history: list[dict[str, Any]]) -> None:
        self.recorder = ConversationRecorder(_messages(_opening(history)))
        self.native = False
        self._answers = [m for m in history if m.get("role") == "assistant" and not m.get("is_demo")]
        self._number = 0
        self._known: dict[str, Message] = {}

    def step(self, step: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Play one step; the one after it tells in which words its observation was read."""
        query = step.get("query")
        queried = objects_in(query)
        if queried:
            self.recorder.restart(self._shared(message) for message in _messages(queried))
        text, response = string(step, "thought"), string(step, "response")
        called = step.get("tool_calls") or self._called(response, string(step, "action"))
        calls = native_calls(called)
        self.native = self.native or bool(calls)
        if calls:
            spoken = None
            text = response
        else:  # the command stands in the text
            text = response or text
            spoken = Message(role="assistant", content=text)
            action = string(step, "action")
            calls = [native_call(f"call_{self._number}", "bash", {"command": action})] if action.strip() else []
        self._number += 1
        details = present(seconds=step.get("execution_time"), state=step.get("state"), thought=string(step, "thought"))
        if not queried:
            details[INCOMPLETE] = NO_QUERY
        elif missing := _missing(query):
            details[INCOMPLETE] = missing
        self.recorder.answer(text, calls, details=details, message=spoken)
        read = objects_in(after.get("query"))[len(queried) + 1 :] if queried else []
        said = text_of(step.get("observation"))[0]
        observation = text_of(read[0].get("content"))[0] if len(read) == 1 else said
        for call, _ in calls[:1]:
            result = inferred_result(call, call.call_id, observation, said=said)
            self.recorder.result(result, None if self.native else Message(role="user", content=observation))

    def _called(self, response: str, action: str) -> Any:
        """Return the calls of an answer: steps do not have them, the history does, except for answers that were thrown away."""
        for place, message in enumerate(self._answers):
            if text_of(message.get("content"))[0] == response and string(message, "action") == action:
                del self._answers[: place + 1]
                return message.get("tool_calls")
        return None

    def _shared(self, message: Message) -> Message:
        return self._known.setdefault(repr(message), message)


def _missing(query: Any) -> str:
    """Return what of a query is not in its messages."""
    lost = next((part for message in objects_in(query) if (part := text_of(message.get("content"))[1])), "")
    return f"a part of a message: {lost}" if lost else "a message" if len(objects_in(query)) < len(query) else ""


def _opening(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages before the first answer, without demonstrations."""
    opening = []
    for message in history:
        if message.get("role") == "assistant" and not message.get("is_demo"):
            break
        opening.append(message)
    return opening


def _messages(history: list[dict[str, Any]]) -> Iterator[Message]:
    for message in history:
        text, _ = text_of(message.get("content"))
        role = string(message, "role")
        ids = message.get("tool_call_ids")
        if role == "assistant":
            yield spoken(text, native_calls(message.get("tool_calls")))
        elif role == "tool":
            call_id = string(message, "tool_call_id") or (str(ids[0]) if isinstance(ids, list) and ids else "")
            yield Message(role="tool", content=text, tool_call_id=call_id)
        else:
            yield Message(role="system" if role == "system" else "user", content=text)


READER = FileReader("swe-agent", lambda record: _steps(record) is not None, of_document(_convert))
