"""Harbor's Agent Trajectory Interchange Format (ATIF), version 1.8 and the earlier 1.x: read.

https://github.com/harbor-framework/harbor (docs, RFC 0001). A step of source `agent` is a turn, and what the steps before it say
is its context. Steps marked `is_copied_context`, and those without a model call, are context, not turns. What ATIF
has no field for, `atif_write` puts into `extra` under `composer`: with it nothing is lost on the way out and back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from composer_replication.traces.outcome import inferred_result
from composer_replication.traces.reader import FileReader, Item, of_document
from composer_replication.traces.readers.fields import number, objects_in, present, section, string, text_of
from composer_replication.traces.recorder import INCOMPLETE, ConversationRecorder, native_call, spoken, tool_message
from composer_replication.traces.schema import AtifCall, AtifResult, AtifStep, AtifTrace, check
from composer_replication.traces.source import Dropped, Problem, UnreadableError
from composer_replication.traces.store import context_from
from composer_replication.types import Message, ToolCall, ToolResult, reward_from_json
from composer_replication.types.transcript import Trace

KEY = "composer"
"""The name under `extra` of what ATIF has no field for."""
COPIED = "copied context: kept as context, not as turns"
NO_MODEL = "steps without a model call: kept as context, not as turns"


def _convert(value: Any, path: Path) -> Iterator[Item]:
    for record in value if isinstance(value, list) else [value]:
        if isinstance(record, dict) and _is_atif(record):
            yield from trace_from_atif(record, path)
        else:
            yield Problem(path, "not an ATIF trajectory of version 1")


def _is_atif(record: Mapping[str, Any]) -> bool:
    return string(record, "schema_version").startswith("ATIF-v1.") and isinstance(record.get("steps"), list)


def trace_from_atif(record: Mapping[str, Any], path: Path) -> Iterator[Item]:
    """Yield the traces of one ATIF document: itself, then its subagents'. `path` names it in problems."""
    recorder = ConversationRecorder(exact=bool(section(record, "extra", KEY)))
    player = _AtifPlayer(recorder)
    problem = ""
    for place, step in enumerate(record["steps"], start=1):
        try:
            problem = _fault(step) or player.step(step)
        except UnreadableError as error:
            problem = str(error)
        if problem:
            yield Problem(path, f"step {place}: {problem}; what comes before it is kept")
            break
    yield from (Dropped(path, reason, count) for reason, count in player.dropped.items())
    fault = _unlike(AtifTrace, record)
    if fault:
        yield Problem(path, fault)
    elif recorder.turns():
        yield _trace(record, recorder, path)
    elif not problem:
        yield Problem(path, "a trajectory without a turn of its agent")
    for sub in objects_in(record.get("subagent_trajectories")):
        if isinstance(sub.get("steps"), list):
            yield from trace_from_atif(sub, path)
        else:
            yield Problem(path, "a subagent's trajectory without steps")


def _fault(step: Any) -> str:
    """Return what in a step is not as `atif_write` writes it, or an empty text."""
    if not isinstance(step, dict):
        return "not an object"
    calls, results = objects_in(step.get("tool_calls")), objects_in(section(step, "observation").get("results"))
    faults = [_unlike(AtifStep, step), *(_unlike(AtifCall, call) for call in calls), *(_unlike(AtifResult, r) for r in results)]
    return next(filter(None, faults), "")


def _unlike(shape: type[BaseModel], record: Mapping[str, Any]) -> str:
    ours = section(record, "extra", KEY)
    try:
        if ours:
            check(shape, ours)
    except UnreadableError as error:
        return f"extra.{KEY}.{error}"
    return ""


def _trace(record: Mapping[str, Any], recorder: ConversationRecorder, path: Path) -> Trace:
    ours = section(record, "extra", KEY)
    agent = section(record, "agent")
    named = " ".join(filter(None, (string(agent, "name"), string(agent, "version"))))
    extra = {name: value for name, value in section(record, "extra").items() if name != KEY}
    foreign = present(
        session_id=string(record, "session_id"), notes=string(record, "notes"), extra=extra,
        continued_trajectory_ref=string(record, "continued_trajectory_ref"), agent_extra=section(agent, "extra"),
        usd=number(record, "final_metrics", "total_cost_usd"),
    )  # fmt: skip
    opening = ours.get("messages")
    return recorder.trace(
        string(record, "trajectory_id") or string(record, "session_id") or path.stem,
        string(ours, "format") or READER.name,
        messages=tuple(opening) if isinstance(opening, list) else recorder.opening,
        tools=tuple(objects_in(agent.get("tool_definitions"))),
        task_id=string(ours, "task_id"),
        agent=string(ours, "agent") if ours else named,
        model=string(ours, "model") if ours else string(agent, "model_name"),
        reward=None if ours.get("reward") is None else reward_from_json(ours["reward"]),
        details=section(ours, "details") if ours else foreign,
    )


class _AtifPlayer:
    """Plays steps into a recorder."""

    def __init__(self, recorder: ConversationRecorder) -> None:
        self._recorder = recorder
        self._missing = ""
        self.dropped: dict[str, int] = {}

    def step(self, step: Mapping[str, Any]) -> str:
        """Play one step. Returns what is wrong with it, or an empty text."""
        source = string(step, "source")
        text, missing = text_of(step.get("message"))
        self._missing = self._missing or missing
        if source in ("system", "user"):
            ours = section(step, "extra", KEY, "message")
            message = cast(Message, ours) if ours else Message(role=source, content=text)
            self._recorder.say(message)
            for result in self._results(step, ()):
                self._recorder.say(Message(role=source, content=result.content))
            return ""
        if source != "agent":
            return f"its source is {source[:40]!r}"
        calls = [_call(call) for call in objects_in(step.get("tool_calls"))]
        reason = COPIED if step.get("is_copied_context") is True else NO_MODEL if step.get("llm_call_count") == 0 else ""
        if reason:
            self.dropped[reason] = self.dropped.get(reason, 0) + 1
            self._recorder.say(spoken(text, calls))
        else:
            self._turn(step, text, calls)
        for result in self._results(step, [call for call, _ in calls]):
            if not reason:
                self._recorder.note(result, last=True)
            self._recorder.say(tool_message(result) if result.call_id else Message(role="user", content=result.content))
        return ""

    def _turn(self, step: Mapping[str, Any], text: str, calls: list[tuple[ToolCall, str | None]]) -> None:
        ours = section(step, "extra", KEY)
        if isinstance(ours.get("context"), list):
            self._recorder.restart(context_from(self._recorder.context, ours["context"]))
        ids = present(
            token_ids=section(step, "metrics").get("completion_token_ids"), logprobs=section(step, "metrics").get("logprobs")
        )
        details = {**section(ours, "details"), **ids} if ours else {**_details(step), **ids}
        if self._missing and not ours:
            details[INCOMPLETE] = f"a part of a message: {self._missing}"
        elif not ours and (number(step, "llm_call_count") or 1) > 1:
            details[INCOMPLETE] = "several model calls in one step"
        reasoning = string(step, "reasoning_content")
        self._recorder.answer(text, calls, reasoning=reasoning, details=details, whole=bool(ours))

    def _results(self, step: Mapping[str, Any], calls: list[ToolCall] | tuple[()]) -> Iterator[ToolResult]:
        observed = section(step, "observation").get("results")
        results = objects_in(observed)
        if isinstance(observed, list) and len(results) < len(observed):
            self._missing = self._missing or "result"
        for place, result in enumerate(results):
            text, missing = text_of(result.get("content"))
            if result.get("subagent_trajectory_ref") and not text:
                missing = "subagent"
            self._missing = self._missing or missing
            ours = section(result, "extra", KEY)
            if ours:
                yield ToolResult(content=text, **ours)
                continue
            call_id = string(result, "source_call_id")
            if not call_id and len(calls) == len(results):
                call_id = calls[place].call_id
            call = next((call for call in calls if call.call_id == call_id), None)
            yield inferred_result(call, call_id, text)


def _call(call: Mapping[str, Any]) -> tuple[ToolCall, str | None]:
    ours = section(call, "extra", KEY)
    call_id, name = string(call, "tool_call_id"), string(call, "function_name")
    if ours:
        read = ToolCall(call_id=call_id, name=name, arguments=section(call, "arguments"), error=ours.get("error"))
        return read, ours.get("raw")
    return native_call(call_id, name, call.get("arguments"))


def _details(step: Mapping[str, Any]) -> dict[str, Any]:
    metrics = section(step, "metrics")
    usage = {name: metrics[name] for name in ("prompt_tokens", "completion_tokens", "cached_tokens") if number(metrics, name)}
    return present(
        model=string(step, "model_name"),
        timestamp=string(step, "timestamp"),
        usage=usage,
        usd=number(metrics, "cost_usd"),
        reasoning_effort=step.get("reasoning_effort"),
        extra=section(step, "extra"),
    )


READER = FileReader("atif", _is_atif, of_document(_convert))
