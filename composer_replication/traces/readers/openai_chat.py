"""Conversations in the OpenAI chat form, one per line, which most datasets of agent runs use.

A record holds `messages`, a list or its JSON text, or `trajectory` (nebius, SWE-rebench), and beside it what many have: `tools`,
an id, `instance_id`, `model`, `resolved`. Every message of the assistant is a turn, and those before it are its context. Tool
calls are native (`tool_calls`); the older `function_call` and role `function` are read likewise, and the role `ai` with `text`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_replication.tokens.tool_calls import load_json
from composer_replication.traces.outcome import inferred_result
from composer_replication.traces.reader import FileReader, Item
from composer_replication.traces.readers.fields import objects_in, present, section, string, text_of
from composer_replication.traces.recorder import INCOMPLETE, ConversationRecorder, native_call
from composer_replication.traces.source import Problem, documents
from composer_replication.types import Message
from composer_replication.types.transcript import Trace

_LISTS = ("messages", "trajectory", "conversations")
_IDS = ("trajectory_id", "traj_id", "id", "conversation_id")
_ROLES = {
    "ai": "assistant",
    "function": "tool",
    "developer": "system",
    "human": "user",
    "gpt": "assistant",
    "environment": "user",
}
_VERDICTS = ("resolved", "target", "success")
_PATCHES = ("patch", "model_patch", "generated_patch")


def _read(path: Path) -> Iterator[Item]:
    for item in documents(path):
        if isinstance(item, Problem):
            yield item
            continue
        number, record = item
        messages = _messages(record)
        if messages is None:
            yield Problem(path, "no list of messages", number)
            continue
        recorder = ConversationRecorder()
        problem = play_messages(recorder, messages)
        if problem:
            yield Problem(path, problem, number)
        elif not recorder.turns():
            yield Problem(path, "a conversation without an answer of the assistant", number)
        else:
            yield _trace(path, number, record, recorder)


def _messages(record: Mapping[str, Any]) -> list[Any] | None:
    """Return the record's conversation, if it has one whose every message has a role."""
    for name in _LISTS:
        value = record.get(name)
        if isinstance(value, str):
            try:
                value = load_json(value)
            except ValueError:
                continue
        if isinstance(value, list) and value and isinstance(value[0], dict) and isinstance(value[0].get("role"), str):
            return value
    return None


def _trace(path: Path, number: int, record: Mapping[str, Any], recorder: ConversationRecorder) -> Trace:
    tools = record.get("tools")
    if isinstance(tools, str):
        try:
            tools = load_json(tools)
        except ValueError:
            tools = []
    named = next((str(record[name]) for name in _IDS if isinstance(record.get(name), str | int)), "")
    return recorder.trace(
        named or f"{path.stem}:{number}",
        READER.name,
        tools=tuple(objects_in(tools)),
        task_id=string(record, "instance_id") or string(record, "task_id"),
        model=string(record, "model") or string(record, "model_name"),
        reward=verdict(record),
        details=present(
            exit_status=string(record, "exit_status"),
            repo=string(record, "repo"),
            patch=next((string(record, name) for name in _PATCHES if string(record, name)), ""),
            metadata=section(record, "metadata"),
        ),
    )


def verdict(record: Mapping[str, Any]) -> float | None:
    """Return 1 or 0 where the record says whether the work was right."""
    said = next((record[name] for name in _VERDICTS if isinstance(record.get(name), bool)), None)
    return None if said is None else float(said)


def play_messages(recorder: ConversationRecorder, messages: list[Any]) -> str:
    """Play a conversation into `recorder`. Returns what is wrong with it, or an empty text."""
    missing = ""
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            return f"message {place} is not an object"
        role = _ROLES.get(string(message, "role"), string(message, "role"))
        content = message.get("content")
        for name in ("text", "value", "system_prompt"):  # of datasets
            content = message[name] if content is None and isinstance(message.get(name), str) else content
        text, part = text_of(content)
        missing = missing or part
        if role == "assistant":
            calls = [native_call(*call) for call in _calls(message, place)]
            details = {INCOMPLETE: f"a part of a message: {missing}"} if missing else None
            reasoning = string(message, "reasoning_content") or string(message, "reasoning")
            recorder.answer(text, calls, reasoning=reasoning, details=details)
        elif role == "tool":
            call_id = string(message, "tool_call_id") or recorder.waiting(string(message, "name"))
            result = inferred_result(recorder.call(call_id), call_id, text)
            recorder.result(result if result.name else replace(result, name=string(message, "name")))
        elif role in ("system", "user"):
            recorder.say(Message(role=role, content=text))
        else:
            return f"message {place} has the role {role[:40]!r}"
    return ""


def _calls(message: Mapping[str, Any], place: int) -> Iterator[tuple[str, str, Any]]:
    """Yield id, name and arguments of every call of a message of the assistant. One without an id, or with another's, is given
    one."""
    calls = [(string(call, "id"), section(call, "function")) for call in objects_in(message.get("tool_calls"))]
    old = section(message, "function_call")
    seen = {""}
    for index, (call_id, function) in enumerate([*calls, ("", old)] if old else calls):
        yield f"call_{place}_{index}" if call_id in seen else call_id, string(function, "name"), function.get("arguments")
        seen.add(call_id)


READER = FileReader("openai-chat", lambda record: _messages(record) is not None, _read)
