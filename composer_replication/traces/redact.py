"""Taking credentials out of traces, everywhere alike, before anybody trains on them or sends them to a teacher.

A credential that is found anywhere in a trace is replaced by `[REDACTED:kind]` wherever it stands in that trace: in contexts,
answers, calls, results, details, tools, names, ids and keys. Nothing else changes; a trace without one is returned as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from composer_replication.types import Message, ToolCall, ToolResult
from composer_replication.types.secrets import Secret, named_secret, secrets_in_log
from composer_replication.types.transcript import Trace, TraceTurn

__all__ = ["Redactor"]

_SHORT = 12
"""Characters below which a credential is taken out only where it stands alone, and not inside other words and numbers."""
_IDS = frozenset({"token_ids", "logprobs", "observation_ids", "prompt_ids"})
"""Details that spell a text in another way, and are of no use without it."""
T = TypeVar("T")


class Redactor:
    """Redacts trace after trace, and counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Different credentials by kind, counted per trace."""

    def redact(self, trace: Trace) -> Trace:
        """Return the trace without credentials. Token ids of a trace that held one are left out: they would spell it."""
        found: dict[str, str] = {}
        seen: set[str] = set()
        for secret in (s for value in _parts(trace) for s in _search(value, seen)):
            found.setdefault(secret.text, secret.kind.lower().replace(" ", "-"))
        if not found:
            return trace
        self.counts.update(found.values())
        ordered = sorted(found, key=len, reverse=True)

        alone = {s: re.compile(rf"(?<![A-Za-z0-9]){re.escape(s)}(?![A-Za-z0-9])") for s in ordered if len(s) < _SHORT}

        def clean(text: str) -> str:
            for secret in ordered:
                shown = f"[REDACTED:{found[secret]}]"
                text = alone[secret].sub(shown, text) if secret in alone else text.replace(secret, shown)
            return text

        return _Copy(clean).trace(trace)


def _parts(trace: Trace) -> Iterator[Any]:
    """Yield every piece of a trace that holds texts, shared messages once."""
    yield from (trace.trajectory_id, trace.task_id, trace.agent, trace.model, trace.tools, _without_ids(trace.details))
    seen: set[int] = set()
    for context in (trace.messages, *(turn.context for turn in trace.turns)):
        for message in context:
            if id(message) not in seen:
                seen.add(id(message))
                yield message
    for turn in trace.turns:
        yield from (turn.text, turn.reasoning, _without_ids(turn.details))
        for call in turn.tool_calls:
            yield from (call.call_id, call.name, call.arguments, call.error)
        for result in turn.results:
            yield from (result.call_id, result.name, result.content, result.details)


def _without_ids(details: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in details.items() if name not in _IDS}


def _search(value: Any, seen: set[str]) -> Iterator[Secret]:
    if isinstance(value, str):
        if value not in seen:
            seen.add(value)
            yield from secrets_in_log(value)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _search(name, seen)
            if isinstance(item, str) and (secret := named_secret(str(name), item)):
                yield secret
            yield from _search(item, seen)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _search(item, seen)


class _Copy:
    """A copy whose every text went through `clean`; messages that were shared stay shared."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._messages: dict[int, Message] = {}

    def trace(self, trace: Trace) -> Trace:
        return replace(
            trace,
            trajectory_id=self._clean(trace.trajectory_id),
            task_id=self._clean(trace.task_id),
            agent=self._clean(trace.agent),
            model=self._clean(trace.model),
            tools=tuple(map(self._value, trace.tools)),
            messages=tuple(map(self._message, trace.messages)),
            turns=tuple(map(self._turn, trace.turns)),
            details=self._details(trace.details),
        )

    def _turn(self, turn: TraceTurn) -> TraceTurn:
        return TraceTurn(
            context=tuple(map(self._message, turn.context)),
            text=self._clean(turn.text),
            tool_calls=tuple(map(self._call, turn.tool_calls)),
            results=tuple(map(self._result, turn.results)),
            reasoning=None if turn.reasoning is None else self._clean(turn.reasoning),
            details=self._details(turn.details),
        )

    def _message(self, message: Message) -> Message:
        if id(message) not in self._messages:
            self._messages[id(message)] = self._value(message)
        return self._messages[id(message)]

    def _call(self, call: ToolCall) -> ToolCall:
        error = None if call.error is None else self._clean(call.error)
        cleaned = {"call_id": self._clean(call.call_id), "name": self._clean(call.name)}
        return replace(call, **cleaned, arguments=self._value(call.arguments), error=error)

    def _result(self, result: ToolResult) -> ToolResult:
        cleaned = {name: self._clean(getattr(result, name)) for name in ("call_id", "name", "content")}
        return replace(result, **cleaned, details=self._value(result.details))

    def _details(self, details: Mapping[str, Any]) -> dict[str, Any]:
        return {self._clean(name): self._value(value) for name, value in details.items() if name not in _IDS}

    def _value(self, value: T) -> T:
        if isinstance(value, str):
            return self._clean(value)  # type: ignore[return-value]
        if isinstance(value, Mapping):
            return {self._value(name): self._value(item) for name, item in value.items()}  # type: ignore[return-value]
        if isinstance(value, list | tuple):
            return [self._value(item) for item in value]  # type: ignore[return-value]
        return value
