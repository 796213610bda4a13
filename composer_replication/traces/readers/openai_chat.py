"""Conversations in the OpenAI chat form, one per line, which most datasets of agent runs use.

A record holds `messages`, a list or its JSON text, `trajectory` (nebius, SWE-rebench) or `traj` (tau-bench), and beside it what
many have: `tools`, an id, `instance_id`, `model`, `resolved`, `reward`. A list of messages alone is a record too.

Every message of the assistant is a turn, and those before it are its context. Tool calls are native (`tool_calls`); the older
`function_call` and role `function` are read likewise, the role `ai` with `text`, and ShareGPT's `from` with `value`. A shell
command in the text is a call where the next message says what it returned, as in datasets of mini-swe-agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_replication.actions.calls import command_in
from composer_replication.tokens.tool_calls import load_json
from composer_replication.traces.outcome import inferred_result
from composer_replication.traces.reader import FileReader, Item
from composer_replication.traces.readers.fields import number, objects_in, present, section, string, text_of
from composer_replication.traces.recorder import INCOMPLETE, ConversationRecorder, native_call
from composer_replication.traces.source import Problem, documents
from composer_replication.traces.states import TEXT_ACTIONS
from composer_replication.types import Message
from composer_replication.types.transcript import Trace

_LISTS = ("messages", "trajectory", "conversations", "traj")
_IDS = ("trajectory_id", "traj_id", "id", "conversation_id")
_TASKS = ("instance_id", "task_id")
_ROLES = {
    "ai": "assistant",
    "function": "tool",
    "developer": "system",
    "human": "user",
    "gpt": "assistant",
    "environment": "user",
}
_VERDICTS = ("resolved", "target", "success", "reward")
_RETURNED = re.compile(r"\s*<returncode>-?\d+</returncode>")
"""Opening of a message that is the result of the command before it."""
_PATCHES = ("patch", "model_patch", "generated_patch")


def _read(path: Path) -> Iterator[Item]:
    for item in documents(path):
        if isinstance(item, Problem):
            yield item
            continue
        place, record = item
        messages = _messages(record)
        if messages is None:
            yield Problem(path, "no list of messages", place)
            continue
        recorder = ConversationRecorder()
        problem = play_messages(recorder, messages)
        if problem:
            yield Problem(path, problem, place)
        elif not recorder.turns():
            yield Problem(path, "a conversation without an answer of the assistant", place)
        else:
            yield _trace(path, place, record, recorder)


def _messages(record: Mapping[str, Any]) -> list[Any] | None:
    """Return the record's conversation, if it has one whose every message has a role."""
    for name in _LISTS:
        value = record.get(name)
        if isinstance(value, str):
            try:
                value = load_json(value)
            except ValueError:
                continue
        if isinstance(value, list) and value and isinstance(value[0], dict) and _role(value[0]):
            return value
    return None


def _role(message: Mapping[str, Any]) -> str:
    said = string(message, "role") or string(message, "from")
    return _ROLES.get(said, said)


def _trace(path: Path, place: int, record: Mapping[str, Any], recorder: ConversationRecorder) -> Trace:
    tools = record.get("tools")
    if isinstance(tools, str):
        try:
            tools = load_json(tools)
        except ValueError:
            tools = []
    named = next((str(record[name]) for name in _IDS if isinstance(record.get(name), str | int)), "")
    task = next((str(record[name]) for name in _TASKS if isinstance(record.get(name), str | int) and record[name] != ""), "")
    called = any(turn.tool_calls for turn in recorder.turns())
    in_text = called and not any(message.get("tool_calls") for message in recorder.context)
    return recorder.trace(
        named or f"{path.stem}:{place}",
        READER.name,
        tools=tuple(objects_in(tools)),
        task_id=task,
        model=string(record, "model") or string(record, "model_name"),
        reward=verdict(record),
        details=present(
            exit_status=string(record, "exit_status"),
            repo=string(record, "repo"),
            patch=next((string(record, name) for name in _PATCHES if string(record, name)), ""),
            metadata=section(record, "metadata"),
        )
        | ({TEXT_ACTIONS: True} if in_text else {}),
    )


def verdict(record: Mapping[str, Any]) -> float | None:
    """Return 1 or 0 where the record says whether the work was right, else the number that it calls the reward."""
    said = next((record[name] for name in _VERDICTS if isinstance(record.get(name), bool)), None)
    if said is None:
        said = next((record[name] for name in ("resolved", "success") if record.get(name) in (0, 1)), number(record, "reward"))
    return None if said is None else float(said)


def play_messages(recorder: ConversationRecorder, messages: list[Any]) -> str:
    """Play a conversation into `recorder`. Returns what is wrong with it, or an empty text."""
    missing, waiting = "", ""
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            return f"message {place} is not an object"
        role = _role(message)
        text, part = _said(message)
        missing = missing or part
        if role == "assistant":
            details = {INCOMPLETE: f"a part of a message: {missing}"} if missing else None
            reasoning = string(message, "reasoning_content") or string(message, "reasoning")
            calls = [native_call(*call) for call in _calls(message, place)]
            ran = "" if calls else _ran(text, messages[place + 1 : place + 2])
            waiting = f"call_{place}_0" if ran else ""
            calls = [native_call(waiting, "bash", {"command": ran})] if ran else calls
            spoken = Message(role="assistant", content=text) if ran else None
            recorder.answer(text, calls, reasoning=reasoning, details=details, message=spoken)
        elif waiting:  # what the command in the text returned
            recorder.result(inferred_result(recorder.call(waiting), waiting, text), Message(role="user", content=text))
            waiting = ""
        elif role == "tool":
            call_id = string(message, "tool_call_id") or recorder.waiting(string(message, "name"))
            result = inferred_result(recorder.call(call_id), call_id, text)
            recorder.result(result if result.name else replace(result, name=string(message, "name")))
        elif role in ("system", "user"):
            recorder.say(Message(role=role, content=text))
        else:
            return f"message {place} has the role {role[:40]!r}"
    return ""


def _said(message: Mapping[str, Any]) -> tuple[str, str]:
    content = message.get("content")
    for name in ("text", "value", "system_prompt"):  # of datasets
        content = message[name] if content is None and isinstance(message.get(name), str) else content
    return text_of(content)


def _ran(text: str, following: list[Any]) -> str:
    """Return the command in an answer's text, if the message after it says what a command returned; else an empty text."""
    answer = following[0] if following and isinstance(following[0], dict) else {}
    found = command_in(text) if _role(answer) == "user" and _RETURNED.match(_said(answer)[0]) else None
    return found[1] if found else ""


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
