"""mini-swe-agent (https://mini-swe-agent.com): the messages it sends, from 2.0 on each with what it knows besides under `extra`.

Logs of 1.x have the messages alone: the command is the one `bash` block of an answer, the next message what came of it.

An answer in the wrong form is not shown to the model again: it stands in the `extra` of the complaint about it, and is a turn
that no later context has. The tools are those of the agent itself: `bash` where it calls tools, none where it writes commands
in its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from composer_replication.actions.calls import command_in
from composer_replication.traces.outcome import inferred_result
from composer_replication.traces.reader import FileReader, Item, of_document
from composer_replication.traces.readers.fields import native_calls, number, objects_in, present, section, string, text_of
from composer_replication.traces.recorder import INCOMPLETE, ConversationRecorder, native_call
from composer_replication.traces.source import Problem
from composer_replication.traces.states import TEXT_ACTIONS
from composer_replication.types import Message, ToolSchema
from composer_replication.types.transcript import Trace

_PARAMETERS = {
    "type": "object",
    "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
    "required": ["command"],
}
_TAGS = ("bash", "mswea_bash_command")
"""Tags of the block that it runs."""
BASH: ToolSchema = {
    "type": "function",
    "function": {"name": "bash", "description": "Execute a bash command", "parameters": _PARAMETERS},
}
"""The one tool that mini-swe-agent offers; its logs do not repeat it."""


def _convert(record: Any, path: Path) -> Iterator[Item]:
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
        yield Problem(path, "no list of messages")
        return
    player = _MiniSweAgentPlayer()
    for place, message in enumerate(record["messages"]):
        problem = player.play(message) if isinstance(message, dict) else "not an object"
        if problem:
            yield Problem(path, f"message {place}: {problem}; what comes before it is kept")
            break
    if player.recorder.turns():
        yield _trace(path, record, player)
    else:
        yield Problem(path, "a session without an answer of the model")


def _trace(path: Path, record: Mapping[str, Any], player: _MiniSweAgentPlayer) -> Trace:
    info = section(record, "info")
    text_based = "textbased" in string(info, "config", "model_type").lower() or not player.native
    version = string(info, "mini_version")
    return player.recorder.trace(
        string(record, "instance_id") or path.name.removesuffix(".json").removesuffix(".traj"),
        READER.name,
        tools=() if text_based else (BASH,),
        task_id=string(record, "instance_id"),
        agent=f"mini-swe-agent {version}".strip(),
        model=string(info, "config", "model", "model_name"),
        details=present(
            exit_status=string(info, "exit_status") or player.exit_status,
            patch=string(info, "submission"),
            usd=number(info, "model_stats", "instance_cost"),
            cwd=string(info, "config", "environment", "cwd"),
        )
        | ({TEXT_ACTIONS: True} if text_based else {}),
    )


class _MiniSweAgentPlayer:
    """Plays the messages of one session into its recorder."""

    def __init__(self) -> None:
        self.recorder = ConversationRecorder()
        self.native = False
        self.exit_status = ""
        self._asked: list[str] = []
        self._in_text = False
        self._answers = 0
        self._missing = ""

    def play(self, message: Mapping[str, Any]) -> str:
        """Play one message. Returns what is wrong with it, or an empty text."""
        role, extra = string(message, "role"), section(message, "extra")
        if message.get("object") == "response":
            self._response(message, extra)
            return ""
        if message.get("type") == "function_call_output":
            self._result(string(message, "call_id"), message.get("output"), extra)
            return ""
        text, missing = text_of(message.get("content"))
        self._missing = self._missing or missing
        if role == "assistant":
            self._assistant(message, text, extra)
        elif role == "tool":
            self._result(string(message, "tool_call_id"), text, extra)
        elif role in ("system", "user"):
            refused = section(extra, "response")
            if string(extra, "interrupt_type") == "FormatError" and refused:
                self._refused(refused)
            spoken = Message(role=role, content=text)
            if role == "user" and self._asked and ("returncode" in extra or self._in_text):
                self._result(self._asked.pop(0), text, extra, spoken)
            else:
                self.recorder.say(spoken)
        elif role == "exit":
            self.exit_status = string(extra, "exit_status")
        else:
            return f"its role is {role[:40]!r}"
        return ""

    def _assistant(self, message: Mapping[str, Any], text: str, extra: Mapping[str, Any], *, shown: bool = True) -> None:
        calls = native_calls(message.get("tool_calls"))
        self.native = self.native or bool(calls)
        spoken = None
        if not calls:  # commands in the text
            spoken = Message(role="assistant", content=text)
            self._in_text = shown and "actions" not in extra
            found = command_in(text) if self._in_text else None
            commands = [string(action, "command") for action in objects_in(extra.get("actions"))]
            commands += [found[1]] if found and found[0] in _TAGS else []
            calls = [native_call(f"call_{self._answers}_{i}", "bash", {"command": c}) for i, c in enumerate(commands)]
            self._asked = [call.call_id for call, _ in calls]
        self._answers += 1
        reasoning = string(message, "reasoning_content") or string(message, "thinking")
        details = self._details(extra)
        self.recorder.answer(text, calls, reasoning=reasoning, details=details, message=spoken, shown=shown)

    def _refused(self, response: Mapping[str, Any]) -> None:
        """Record an answer that the agent could not use, and does not show again."""
        choices = objects_in(response.get("choices"))
        if choices:
            answer = section(choices[0], "message")
            self._assistant(answer, text_of(answer.get("content"))[0], {"response": response}, shown=False)
        elif response.get("object") == "response":
            self._response(response, {}, shown=False)

    def _response(self, message: Mapping[str, Any], extra: Mapping[str, Any], *, shown: bool = True) -> None:
        """Record an answer of the Responses interface: a list of items instead of a message."""
        items = objects_in(message.get("output"))
        said = [text_of(item.get("content"))[0] for item in items if item.get("type") == "message"]
        calls = [
            native_call(string(item, "call_id"), string(item, "name"), item.get("arguments"))
            for item in items
            if item.get("type") == "function_call"
        ]
        self.native = self.native or bool(calls)
        thought = [text_of(item.get("summary"))[0] for item in items if item.get("type") == "reasoning"]
        self._answers += 1
        details = self._details(extra)
        self.recorder.answer("\n".join(said), calls, reasoning="\n".join(thought), details=details, shown=shown)

    def _details(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        details = present(
            usd=number(extra, "cost"),
            timestamp=number(extra, "timestamp"),
            usage=section(extra, "response", "usage"),
            model=string(extra, "response", "model"),
        )
        return {**details, INCOMPLETE: f"a part of a message: {self._missing}"} if self._missing else details

    def _result(self, call_id: str, content: Any, extra: Mapping[str, Any], spoken: Message | None = None) -> None:
        text, missing = text_of(content)
        self._missing = self._missing or missing
        code = number(extra, "returncode")
        call = self.recorder.call(call_id)
        kind = string(extra, "exception_type")
        printed = [string(extra, name) for name in ("raw_output", "exception_info") if string(extra, name)]
        said = "\n".join(printed) if "raw_output" in extra else text
        exit_code = None if code is None or kind else int(code)
        result = inferred_result(call, call_id, text, said=said, exit_code=exit_code, failed=bool(kind))
        self.recorder.result(result, spoken)


READER = FileReader(
    "mini-swe-agent", lambda record: string(record, "trajectory_format").startswith("mini-swe-agent"), of_document(_convert)
)
