"""Traces in Harbor's Agent Trajectory Interchange Format (ATIF) 1.8: written, so that `atif` reads back exactly what went out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from composer_replication.observe.files import replace_file
from composer_replication.traces.call_ids import UniqueNames
from composer_replication.traces.readers.atif import KEY
from composer_replication.traces.readers.fields import number, present, section, string
from composer_replication.traces.recorder import RAW, assistant, native_call, tool_message
from composer_replication.traces.store import context_steps
from composer_replication.types import Message, ToolCall, ToolResult, to_json
from composer_replication.types.errors import TraceError
from composer_replication.types.transcript import Trace, TraceTurn

VERSION = "ATIF-v1.8"
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def write_atif(traces: Iterable[Trace], folder: Path) -> list[Path]:
    """Write one file per trace, named after its id.

    Raises:
        TraceError: a trace holds a number that JSON has not (NaN or infinity).
        StorageError: the folder cannot be written.
    """
    written: list[Path] = []
    names = UniqueNames()
    for trace in traces:
        stem = _NOT_IN_A_NAME.sub("_", trace.trajectory_id).strip("._")[:120] or "trace"
        path = folder / f"{names.free(stem)}.json"
        try:
            data = json.dumps(atif_from_trace(trace), indent=1, allow_nan=False).encode()
        except ValueError as error:
            raise TraceError(
                f"the trace {trace.trajectory_id} holds a number that JSON has not: {error}",
                fix="take NaN and infinity out of its details",
            ) from error
        replace_file(path, data + b"\n")
        written.append(path)
    return written


def atif_from_trace(trace: Trace) -> dict[str, Any]:
    """Return the trace as one ATIF document. What ATIF has no field for is in `extra` under `composer`."""
    names: dict[int, str] = {}
    seen: list[Message] = []  # a reader's view of the context so far
    steps: list[dict[str, Any]] = []
    results: set[str] = set()
    for turn in trace.turns:
        new = _new(seen, turn.context)
        steps.extend(_message_step(m) for m in new if m["content"] not in results)
        seen.extend(m for m in new if m["content"] not in results)
        differs = seen != list(turn.context)
        steps.append(_turn_step(turn, context_steps(seen, turn.context, names) if differs else None))
        raw = turn.details.get(RAW, {})
        seen = [*turn.context, assistant(turn.text, turn.tool_calls, raw)]
        seen.extend(tool_message(r) if r.call_id else Message(role="user", content=r.content) for r in turn.results)
        results = {result.content for result in turn.results}
    for place, step in enumerate(steps, start=1):
        step["step_id"] = place
    ours = {name: to_json(getattr(trace, name)) for name in ("format", "task_id", "agent", "model", "reward", "details")}
    opening = trace.turns[0].context if trace.turns else ()
    if trace.messages != opening:
        ours["messages"] = list(trace.messages)
    name, _, version = trace.agent.rpartition(" ")
    agent = present(model_name=trace.model, tool_definitions=list(trace.tools))
    return {
        "schema_version": VERSION,
        "trajectory_id": trace.trajectory_id,
        "agent": {"name": name or trace.agent or trace.format, "version": version if name else "unknown", **agent},
        "steps": steps,
        "final_metrics": {"total_steps": len(steps)},
        "extra": {KEY: ours},
    }


def _new(seen: Sequence[Message], context: Sequence[Message]) -> list[Message]:
    """Return the messages since then by others than the model; all of them when the context does not continue `seen`."""
    if list(context[: len(seen)]) == list(seen):
        return list(context[len(seen) :])
    return [m for m in context if m["role"] in ("system", "user") and m not in seen]


def _message_step(message: Message) -> dict[str, Any]:
    plain = message["role"] in ("system", "user") and message == {"role": message["role"], "content": message["content"]}
    step: dict[str, Any] = {"source": message["role"] if plain else "system", "message": message["content"]}
    return step if plain else {**step, "extra": {KEY: {"message": dict(message)}}}


def _turn_step(turn: TraceTurn, context: list[Any] | None) -> dict[str, Any]:
    details = dict(turn.details)
    raw = details.get(RAW, {})
    metrics = dict(_metrics(details))
    ours: dict[str, Any] = {"details": to_json({k: v for k, v in details.items() if k not in ("token_ids", "logprobs")})}
    ours["details"] |= {k: to_json(details[k]) for k, m in _IDS.items() if k in details and m not in metrics}
    if context is not None:
        ours["context"] = context
    step: dict[str, Any] = {"source": "agent", "message": turn.text, "extra": {KEY: ours}}
    optional = present(
        timestamp=_iso(details.get("timestamp")), model_name=string(details, "model"), reasoning_content=turn.reasoning
    )
    if turn.tool_calls:
        step["tool_calls"] = [_call(call, raw.get(call.call_id)) for call in turn.tool_calls]
    if turn.results:
        known = {call.call_id for call in turn.tool_calls}
        step["observation"] = {"results": [_result(result, known) for result in turn.results]}
    return {**step, **optional, **({"metrics": metrics} if metrics else {})}


_IDS = {"token_ids": "completion_token_ids", "logprobs": "logprobs"}


def _metrics(details: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    ids, logprobs = details.get("token_ids"), details.get("logprobs")
    if isinstance(ids, list | tuple) and ids and all(type(i) is int for i in ids):
        yield "completion_token_ids", list(ids)
    if isinstance(logprobs, list | tuple) and logprobs and all(type(value) is float for value in logprobs):
        yield "logprobs", list(logprobs)
    usage = section(details, "usage")
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        if type(usage.get(name)) is int:
            yield name, usage[name]
    if (usd := number(details, "usd")) is not None:
        yield "cost_usd", usd


def _iso(value: Any) -> str:
    """Return the time where it is one that ATIF accepts."""
    try:
        datetime.fromisoformat(value.replace("Z", "+00:00"))
    except (AttributeError, ValueError):
        return ""
    return str(value)


def _call(call: ToolCall, raw: str | None) -> dict[str, Any]:
    written = {"tool_call_id": call.call_id, "function_name": call.name, "arguments": to_json(call.arguments)}
    if native_call(call.call_id, call.name, written["arguments"]) == (call, raw):
        return written
    return {**written, "extra": {KEY: {"error": call.error, "raw": raw}}}


def _result(result: ToolResult, known: set[str]) -> dict[str, Any]:
    ours = {name: to_json(getattr(result, name)) for name in ("call_id", "name", "status", "details")}
    source = {"source_call_id": result.call_id} if result.call_id in known else {}
    return {**source, "content": result.content, "extra": {KEY: ours}}
