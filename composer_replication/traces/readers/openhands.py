"""OpenHands (software-agent-sdk 1.x): the events of a conversation, and the completions that its model client logs.

A folder of completions (`log_completions`) holds every request word for word, and is to be preferred. For a model without native
calls the requests have calls and results as text, and only the answers have calls. A folder of events
(`persistence_dir/ID/events`) holds what was said; from it the requests are put together as the SDK does it: actions of one
`llm_response_id` are one message, terminal output is followed by its metadata, a condensation takes events away and inserts its
summary. What the events do not tell, such as output beyond the SDK's limit, marks turns incomplete. All name the tools without
their schemas.

What the command line prints is a file of the same events, one a line between words for the screen, without the system prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_replication.traces.outcome import inferred_result
from composer_replication.traces.reader import Item
from composer_replication.traces.readers.fields import native_calls, number, objects_in, present, section, string, text_of
from composer_replication.traces.readers.openai_chat import play_messages
from composer_replication.traces.recorder import INCOMPLETE, ConversationRecorder, native_call, spoken, tool_message
from composer_replication.traces.source import Dropped, Problem, UnreadableError, document, documents, holds, lines, parse
from composer_replication.types import Message, ToolCall, ToolResult
from composer_replication.types.transcript import Trace

EVENTS, COMPLETIONS = "event-*.json", "*.json"
ERROR = "[An error occurred during execution.]\n"
MALFORMED = "_openhands_malformed_tool_call"
MAX_OUTPUT = 30_000
"""Characters beyond which the SDK shortens a terminal's output."""
TWIN = "conversations that are there twice, as events and as completions"
PRINTED = "lines for the screen between events"
LOST = "lost"
"""Stands for an event that the folder does not hold, or that cannot be read."""
_ANSWERED = re.compile(r"EXECUTION RESULT of \[([^\]\n]{0,100})\]:\n")
"""Opening of a result for a model without native calls."""
_NUMBER = re.compile(r"(?<=\Aevent-)\d{1,9}")
_BROWSER = "output of a kind whose rendering is not known"


class OpenHandsReader:
    """One folder per conversation, of events or of completions, or one file of events."""

    name = "openhands"

    def sniff(self, path: Path) -> bool:
        if not path.is_dir():
            return not path.match(EVENTS) and holds(path, _is_event)
        if next(path.glob(EVENTS), None) is not None:
            return True
        first = next(iter(sorted(path.glob(COMPLETIONS))), None)
        return first is not None and holds(first, _is_completion)

    def read(self, path: Path) -> Iterator[Item]:
        if path.is_file():
            yield from _printed(path)
            return
        events = sorted(path.glob(EVENTS))
        records: list[dict[str, Any]] = []
        expected = 0
        for file in events or sorted(path.glob(COMPLETIONS)):
            number = int(found[0]) if (found := _NUMBER.search(file.name)) else expected
            if events and number > expected:
                records.append({"kind": LOST})
            expected = number + 1
            try:
                value = document(file)
            except UnreadableError as error:
                yield Problem(file, str(error))
                value = {"kind": LOST}
            if isinstance(value, dict):
                records.append(value)
            else:
                yield Problem(file, "not a JSON object")
                records.append({"kind": LOST})
        yield from _conversation(path, records) if events else _completions(path, records)


def _is_event(record: Mapping[str, Any]) -> bool:
    return string(record, "kind") in _EVENTS and "source" in record and "id" in record


def _is_completion(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("messages"), list) and isinstance(record.get("response"), dict) and "timestamp" in record


def _named(path: Path) -> str:
    if path.name in ("events", "completions"):
        return path.parent.name
    return path.stem if path.is_file() else path.name


class DuplicateConversations:
    """Knows conversations again: those whose opening is the same, and whose every turn is among the turns of one before."""

    def __init__(self) -> None:
        self._seen: dict[int, list[set[int]]] = {}

    def has(self, trace: Trace) -> bool:
        """Return whether `trace` is one that was seen before, or a part of it; else remember it."""
        turns = {
            hash((turn.text, *((c.call_id, c.name, json.dumps(c.arguments, sort_keys=True)) for c in turn.tool_calls)))
            for turn in trace.turns
        }
        known = self._seen.setdefault(hash(repr(trace.messages)), [])
        if any(turns <= other for other in known):
            return True
        known.append(turns)
        return False


# --- events


def _printed(path: Path) -> Iterator[Item]:
    """Yield the conversation of one file."""
    records: list[dict[str, Any]] = []
    words = 0
    for item in documents(path) if path.suffix == ".json" else _event_lines(path):
        if item is None:
            words += 1
        elif isinstance(item, Problem):
            yield item
            records.append({"kind": LOST})
        else:
            records.append(item[1])
    if words:
        yield Dropped(path, PRINTED, words)
    yield from _conversation(path, records)


def _event_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]] | Problem | None]:
    """Yield the objects of a file of lines, each with its number; None for a line that does not begin as one: words for the
    screen."""
    try:
        for place, line in lines(path):
            if line is None:
                yield Problem(path, "a line that is too long", place)
            elif not line.lstrip().startswith(b"{"):
                yield None
            else:
                try:
                    yield place, parse(line)
                except UnreadableError as error:
                    yield Problem(path, str(error), place)
    except (UnreadableError, OSError) as error:
        yield Problem(path, str(error))


def _conversation(path: Path, events: list[dict[str, Any]]) -> Iterator[Item]:
    view = _ContextView()
    for event in events:
        view.event(event)
    view.close()
    if not view.recorder.turns():
        yield Problem(path, "a conversation without an answer of the model")
        return
    yield view.recorder.trace(
        _named(path),
        READER.name,
        agent="openhands",
    )


class _ContextView:
    """The view the SDK shows its model, event after event."""

    def __init__(self) -> None:
        self.recorder = ConversationRecorder()
        self._shown: list[tuple[str, Message]] = []
        self._open: list[dict[str, Any]] = []
        self._lost = ""

    def event(self, event: dict[str, Any]) -> None:
        """Play one event."""
        kind, name = string(event, "kind"), string(event, "id")
        if kind == LOST:  # an open conversation may lack an action
            self._lost = "an event"
            return
        if kind == "ActionEvent":
            if self._open and string(self._open[0], "llm_response_id") != string(event, "llm_response_id"):
                self.close()
            self._open.append(event)
            return
        if kind in _SILENT:
            return
        self.close()
        match kind:
            case "SystemPromptEvent":
                parts = [section(event, "system_prompt"), section(event, "dynamic_context")]
                self._show(name, Message(role="system", content=text_of([part for part in parts if part])[0]))
            case "MessageEvent":
                self._message(event, name)
            case "ObservationEvent" | "AgentErrorEvent" | "UserRejectObservation":
                self._observation(event, kind, name)
            case "Condensation":
                self._condense(event, name)

    def _show(self, name: str, message: Message) -> None:
        """Add a message; users' messages that follow each other are one."""
        last = self._shown[-1][1] if self._shown else None
        if last is not None and last["role"] == "user" == message["role"]:
            joined = Message(role="user", content=f"{last['content']}\n{message['content']}")
            self._shown[-1] = (self._shown[-1][0], joined)
        else:
            self._shown.append((name, message))

    def _message(self, event: Mapping[str, Any], name: str) -> None:
        message = section(event, "llm_message")
        parts = [*objects_in(message.get("content")), *objects_in(event.get("extended_content"))]
        text, missing = text_of(parts)
        self._lost = self._lost or (missing and f"a part of a message: {missing}")
        if string(message, "role") != "assistant":
            self._show(name, Message(role=string(message, "role") or "user", content=text))
            return
        self._answer(text, [], event, message)
        self._shown.append((name, Message(role="assistant", content=text)))

    def _answer(
        self, text: str, calls: list[tuple[ToolCall, str | None]], event: Mapping[str, Any], thought: Mapping[str, Any]
    ) -> None:
        self.recorder.restart(message for _, message in self._shown)
        details = present(timestamp=string(event, "timestamp"), response_id=string(event, "llm_response_id"))
        if self._lost:
            details[INCOMPLETE] = self._lost
        self.recorder.answer(text, calls, reasoning=string(thought, "reasoning_content"), details=details)

    def close(self) -> None:
        """End the answer whose actions are open, if one is."""
        if not self._open:
            return
        first = self._open[0]
        text, _ = text_of(first.get("thought"))
        calls: list[tuple[ToolCall, str | None]] = []
        for event in self._open:
            call = section(event, "tool_call")
            arguments = call.get("arguments", section(call, "function").get("arguments"))
            name = string(call, "name") or string(call, "function", "name") or string(event, "tool_name")
            read, raw_text = native_call(string(event, "tool_call_id"), name, arguments)
            if MALFORMED in read.arguments:  # the SDK's replacement for arguments that are not JSON
                raw_text = json.dumps(dict(read.arguments))
                read = replace(read, arguments={}, error=str(read.arguments.get("error")))
            calls.append((read, raw_text))
        self._answer(text, calls, first, first)
        self._shown.append((string(first, "id"), spoken(text, calls)))
        self._open = []

    def _observation(self, event: Mapping[str, Any], kind: str, name: str) -> None:
        call_id = string(event, "tool_call_id")
        observation = section(event, "observation")
        code = None
        if kind == "AgentErrorEvent":
            text = string(event, "error")
        elif kind == "UserRejectObservation":
            text = f"Action rejected: {string(event, 'rejection_reason')}"
        else:
            text, lost = _rendered(observation, objects_in(event.get("extended_content")))
            self._lost = self._lost or lost
            exit_code = number(observation, "metadata", "exit_code")
            code = int(exit_code) if exit_code is not None and exit_code != -1 else None
        failed = kind == "AgentErrorEvent" or observation.get("is_error") is True
        timed_out = present(timeout=observation.get("timeout") is True or None)
        call = self.recorder.call(call_id)
        said = text.removeprefix(ERROR).removeprefix("\n")
        result = inferred_result(call, call_id, text, said=said, exit_code=code, failed=failed, details=timed_out)
        self.recorder.note(result)
        self._shown.append((name, tool_message(ToolResult(call_id=call_id, name=string(event, "tool_name"), content=text))))

    def _condense(self, event: Mapping[str, Any], name: str) -> None:
        forgotten = event.get("forgotten_event_ids")
        gone = {item for item in forgotten if isinstance(item, str)} if isinstance(forgotten, list) else set()
        self._shown = [(shown, message) for shown, message in self._shown if shown not in gone]
        place, summary = number(event, "summary_offset"), string(event, "summary")
        if place is not None and summary:
            self._shown.insert(int(place), (f"{name}-summary", Message(role="user", content=summary)))


_EVENTS = {
    *("SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent", "AgentErrorEvent", "UserRejectObservation"),
    "Condensation",
}
_SILENT = {"ConversationStateUpdateEvent", "TokenEvent", "LLMCompletionLogEvent", "StreamingDeltaEvent", "PauseEvent"}


def _rendered(observation: Mapping[str, Any], more: list[dict[str, Any]]) -> tuple[str, str]:
    """Return an observation as the SDK shows it, and what of it is not known."""
    parts: list[Any] = [ERROR] if observation.get("is_error") is True else []
    kind = string(observation, "kind")
    if kind == "TerminalObservation":
        metadata = section(observation, "metadata")
        shown = string(metadata, "prefix") + text_of(observation.get("content"))[0] + string(metadata, "suffix")
        if string(metadata, "working_dir"):
            shown += f"\n[Current working directory: {string(metadata, 'working_dir')}]"
        if string(metadata, "py_interpreter_path"):
            shown += f"\n[Python interpreter: {string(metadata, 'py_interpreter_path')}]"
        code = number(metadata, "exit_code")
        if code is not None and code != -1:
            shown += f"\n[Command finished with exit code {int(code)}]"
        parts.append(shown)
        lost = "output that was shortened" if len(shown) > MAX_OUTPUT else ""
    else:
        parts += objects_in(observation.get("content"))
        lost = _BROWSER if kind.startswith("Browser") else ""
    text, missing = text_of([*parts, *more])
    return text, lost or (missing and f"a part of a result: {missing}")


# --- completions


def _completions(path: Path, records: list[dict[str, Any]]) -> Iterator[Item]:
    """Yield the conversations of one folder: requests that begin with the same messages, in the order of their time."""
    conversations: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda r: number(r, "timestamp") or 0):
        if _is_completion(record):
            opening = repr([text_of(m.get("content"))[0] for m in objects_in(record["messages"])[:2]])
            conversations.setdefault(opening, []).append(record)
    if not conversations:
        yield Problem(path, "no completion with messages and a response")
    for place, requests in enumerate(conversations.values()):
        recorder = ConversationRecorder()
        for record in requests:
            problem = _request(recorder, record)
            if problem:
                yield Problem(path, problem)
        yield recorder.trace(
            _named(path) + (f"/{place}" if place else ""),
            READER.name,
            agent="openhands",
            model=string(requests[0], "response", "model"),
        )


def _request(recorder: ConversationRecorder, record: Mapping[str, Any]) -> str:
    """Play one request and its answer. Returns what is wrong with it, or an empty text."""
    sent_so_far = ConversationRecorder()
    sent = [{**m, "tool_calls": m.get("tool_calls") or []} if isinstance(m, dict) else m for m in record["messages"]]
    problem = play_messages(sent_so_far, [*sent, {"role": "assistant", "content": ""}])
    if problem:
        return problem
    sent_so_far.context.pop()
    missing = sent_so_far.turns()[-1].details.get(INCOMPLETE)
    answers = [place for place, message in enumerate(sent_so_far.context) if message["role"] == "assistant"]
    for message in sent_so_far.context[answers[-1] :] if answers else []:
        answered = _ANSWERED.match(message["content"]) if message["role"] == "user" else None
        if answered or message["role"] == "tool":
            call_id = recorder.waiting(answered[1]) if answered else message.get("tool_call_id", "")
            text = message["content"][answered.end() :] if answered else message["content"]
            said = text.removeprefix(ERROR).removeprefix("\n")
            failed = said != text or said.startswith("Error")
            recorder.note(inferred_result(recorder.call(call_id), call_id, text, said=said, failed=failed))
    shared = {repr(message): message for message in recorder.context}
    recorder.restart(shared.get(repr(message), message) for message in sent_so_far.context)
    choices = objects_in(section(record, "response").get("choices"))
    answer = section(choices[0], "message") if choices else {}
    calls = native_calls(answer.get("tool_calls"))
    details = present(
        usd=number(record, "cost"),
        timestamp=number(record, "timestamp"),
        usage=section(record, "response", "usage"),
        model=string(record, "response", "model"),
        **{INCOMPLETE: missing},
    )
    recorder.answer(text_of(answer.get("content"))[0], calls, reasoning=string(answer, "reasoning_content"), details=details)
    return ""


READER = OpenHandsReader()
