"""Codex CLI's session logs, `~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl`: the items that it exchanges with the Responses API.

What the model returns at once are several items, closed by a usage record or by the next item that is not the model's. A
compaction names what the model sees from then on; where it or a rollback does not, the turns after it are marked incomplete.

In code mode the model has one tool, `exec`, and calls the others from JavaScript. A script with a single call that is certain
(`scripts.call_in`) is that call in its turn, whose details keep the script; contexts have it as the model wrote it.

Contexts are without the system prompt: the log's `base_instructions` are what it is made from, not what is sent (seen in 0.169:
whole sections differ). They are in the trace's details. The tools are not in the log either.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_replication.traces.outcome import inferred_result
from composer_replication.traces.reader import FileReader, Item
from composer_replication.traces.readers.fields import number, objects_in, present, section, string, text_of
from composer_replication.traces.readers.scripts import call_in
from composer_replication.traces.recorder import (
    INCOMPLETE,
    SCRIPT_TOOL,
    SCRIPTS,
    ConversationRecorder,
    native_call,
    spoken,
    tool_message,
)
from composer_replication.traces.source import Dropped, Problem, UnreadableError, objects, parse
from composer_replication.types import Message, ToolCall, ToolResult

_TYPES = {"session_meta", "response_item", "turn_context", "event_msg", "compacted"}
_OUTPUT = {"reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call"}
_RESULTS = {"function_call_output", "custom_tool_call_output", "local_shell_call_output"}
_ROLES = {"developer": "system", "system": "system", "user": "user"}
_REPORT = re.compile(r"\AScript (completed|failed|running)[^\n]*\n(?:Wall time [^\n]*\n)?Output:\n\s*(?:Script error:\n)?")
SUMMARY = "answers to the program's own request for a summary"
UNKNOWN = "items of a type that is not known"


def _read(path: Path) -> Iterator[Item]:
    player = _CodexPlayer()
    for item in objects(path):
        if isinstance(item, Problem):
            yield item
            player.lose("a line that cannot be read")
        else:
            player.line(item[1])
    player.close()
    yield from (Dropped(path, reason, count) for reason, count in player.dropped.items())
    if not player.recorder.turns():
        yield Problem(path, "a session without an answer of the model")
        return
    meta = player.meta
    version = string(meta, "cli_version")
    yield player.recorder.trace(
        string(meta, "id") or path.stem,
        READER.name,
        agent=f"codex {version}".strip(),
        model=player.model,
        details=present(
            cwd=string(meta, "cwd"), git=section(meta, "git"), originator=string(meta, "originator"),
            base_instructions=string(meta, "base_instructions", "text") or string(meta, "base_instructions"),
            provider=string(meta, "model_provider"), forked_from=string(meta, "forked_from_id"),
        ),
    )  # fmt: skip


class _CodexPlayer:
    """Plays the lines of one log into its recorder."""

    def __init__(self) -> None:
        self.recorder = ConversationRecorder()
        self.meta: dict[str, Any] = {}
        self.model = ""
        self.dropped: Counter[str] = Counter()
        self._open: list[dict[str, Any]] = []
        self._details: dict[str, Any] = {}
        self._lost = ""
        self._total: Any = None
        self._scripts: set[str] = set()

    def line(self, line: Mapping[str, Any]) -> None:
        """Play one line."""
        payload = section(line, "payload")
        match line.get("type"):
            case "session_meta" if not self.meta:
                self.meta = payload
            case "turn_context":
                self.model = string(payload, "model") or self.model
            case "event_msg":
                self._event(payload)
            case "token_usage_record":
                if self._open:
                    self._details.update(present(usage=section(payload, "usage"), response_id=string(payload, "response_id")))
                self.close()
            case "compacted":
                self._compacted(payload)
            case "response_item":
                self._item(payload, line)

    def lose(self, what: str) -> None:
        """Mark a gap; what is lost may have been a part of the answer that is open, or the end of the last one."""
        self._lost = self._lost or what
        if not self._open:
            self.recorder.doubt(what)

    def _event(self, payload: Mapping[str, Any]) -> None:
        if payload.get("type") == "token_count":
            total = section(payload, "info", "total_token_usage") or payload
            if payload.get("info", total) is None or total == self._total:
                return  # limits are told anew in the midst of an answer; what it used is told once, at its end
            self._total = total
            if self._open:
                self._details.update(present(usage=section(payload, "info", "last_token_usage")))
            self.close()
        elif payload.get("type") == "thread_rolled_back":
            self.close()
            self._lost = "what a rollback left of the conversation"

    def _compacted(self, payload: Mapping[str, Any]) -> None:
        self.close()
        if self.recorder.forget_last(string(payload, "compaction_response_id")):
            self.dropped[SUMMARY] += 1
        history = payload.get("replacement_history")
        if not isinstance(history, list):
            self._lost = "what a compaction left of the conversation"
            self.recorder.restart([Message(role="user", content=string(payload, "message"))])
            return
        self._lost = ""
        self.recorder.restart(())
        for item in objects_in(history):
            self._replay(item)

    def _replay(self, item: Mapping[str, Any]) -> None:
        """Replay an item of the model or of another source, as context only."""
        kind = string(item, "type")
        if kind in _RESULTS:
            self.recorder.context.append(self._told(self._result(item)))
        elif kind in _OUTPUT or (kind == "message" and item.get("role") == "assistant"):
            text, calls, _ = _spoken([item])
            if text or calls:
                self.recorder.say(spoken(text, calls))
        elif kind == "message":
            self._message(item)
        else:
            self._lost = f"a part of the conversation that is not text: {kind[:40]}"

    def _item(self, item: dict[str, Any], line: Mapping[str, Any]) -> None:
        kind = string(item, "type")
        if kind in _OUTPUT or (kind == "message" and item.get("role") == "assistant"):
            self._open.append(item)
            self._details.update(present(timestamp=string(line, "timestamp")))
        elif kind in _RESULTS:
            self.close()
            result = self._result(item)
            self.recorder.result(result, self._told(result))
        elif kind == "message":
            self.close()
            self._message(item)
        else:
            self.dropped[UNKNOWN] += 1

    def _message(self, item: Mapping[str, Any]) -> None:
        text, missing = text_of(item.get("content"))
        self._lost = self._lost or (missing and f"a part of a message: {missing}")
        self.recorder.say(Message(role=_ROLES.get(string(item, "role"), "user"), content=text))

    def _result(self, item: Mapping[str, Any]) -> ToolResult:
        output = item.get("output")
        if isinstance(output, dict):
            output = output.get("content") or output.get("content_items")
        text, missing = text_of(output)
        self._lost = self._lost or (missing and f"a part of a result: {missing}")
        call_id = string(item, "call_id")
        report = _REPORT.match(text)
        said = text[report.end() :] if report else text
        failed = report is not None and report[1] == "failed"
        return inferred_result(self.recorder.call(call_id), call_id, text, said=said, exit_code=_exit_code(said), failed=failed)

    def _told(self, result: ToolResult) -> Message:
        """Return a result as the model reads it: that of a script by the name of the tool that runs scripts."""
        return tool_message(replace(result, name=SCRIPT_TOOL) if result.call_id in self._scripts else result)

    def close(self) -> None:
        """End the answer of the model that is open, if one is."""
        if not self._open:
            return
        text, calls, reasoning = _spoken(self._open)
        details = {**present(model=self.model), **self._details}
        if self._lost:
            details[INCOMPLETE] = self._lost
        searched = [section(item, "action") for item in self._open if item.get("type") == "web_search_call"]
        made = [(_called(call) or (call, raw)) for call, raw in calls]
        scripts = {
            call.call_id: call.arguments["input"] for (call, _), (real, _) in zip(calls, made, strict=True) if call is not real
        }
        self._scripts.update(scripts)
        details.update(present(web_search=searched, **{SCRIPTS: scripts}))
        self.recorder.answer(text, made, reasoning=reasoning, details=details, message=spoken(text, calls))
        self._open, self._details = [], {}


def _spoken(items: list[dict[str, Any]] | list[Mapping[str, Any]]) -> tuple[str, list[tuple[ToolCall, str | None]], str]:
    """Return the text, calls and reasoning of the items of one answer."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[tuple[ToolCall, str | None]] = []
    for item in items:
        call_id, name = string(item, "call_id") or string(item, "id"), string(item, "name")
        match item.get("type"):
            case "message":
                texts.append(text_of(item.get("content"))[0])
            case "reasoning":
                thoughts += [text_of(item.get(part))[0] for part in ("summary", "content")]
            case "function_call":
                calls.append(native_call(call_id, name, item.get("arguments")))
            case "custom_tool_call":
                calls.append(native_call(call_id, name, {"input": string(item, "input")}))
            case "local_shell_call":
                calls.append(native_call(call_id, "local_shell", section(item, "action")))
    return "\n".join(texts), calls, "\n".join(filter(None, thoughts))


def _called(call: ToolCall) -> tuple[ToolCall, str | None] | None:
    """Return the one certain call of a script; None for a call that is no such script."""
    script = call.arguments.get("input") if call.name == SCRIPT_TOOL else None
    found = call_in(script) if isinstance(script, str) else None
    if found is None or not isinstance(found[1], str | dict):
        return None
    name, argument = found
    made = native_call(call.call_id, name, argument if isinstance(argument, dict) else {"input": argument})
    return made if made[0].error is None else None


def _exit_code(text: str) -> int | None:
    """Return the exit code in the JSON form that older versions and code mode give results."""
    if not text.startswith("{"):
        return None
    try:
        value = parse(text.encode())
    except UnreadableError:
        return None
    if not isinstance(value, dict) or "output" not in value:
        return None
    code = number(value, "exit_code") if "exit_code" in value else number(value, "metadata", "exit_code")
    return None if code is None else int(code)


READER = FileReader("codex", lambda line: string(line, "type") in _TYPES and isinstance(line.get("payload"), dict), _read)
