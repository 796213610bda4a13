"""Replay of a conversation: everything said so far is the context of the next turn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_replication.actions.calls import too_deep
from composer_replication.tokens.tool_calls import load_json
from composer_replication.traces.call_ids import distinct_ids
from composer_replication.types import Message, ToolCall, ToolResult
from composer_replication.types.transcript import Trace, TraceTurn

INCOMPLETE = "incomplete"
"""Detail of a turn: what of its context, or of itself, the log does not hold. Such a turn is not a state."""
RAW = "raw_arguments"
"""Detail of a turn: `{call_id: text}` of calls whose arguments are not a JSON object."""
SCRIPTS = "scripts"
"""Detail of a turn: `{call_id: text}` of calls that the model made from a script."""
SCRIPT_TOOL = "exec"
"""The tool that runs scripts; its argument `input` is one."""


def native_call(call_id: str, name: str, arguments: Any) -> tuple[ToolCall, str | None]:
    """Return a call as an API returned it, and its arguments as text where they are not a JSON object (then the call has an
    `error`)."""
    try:
        parsed = load_json(arguments or "{}") if isinstance(arguments, str) else {} if arguments is None else arguments
    except ValueError as error:
        return ToolCall(call_id=call_id, name=name, arguments={}, error=str(error)), str(arguments)
    if isinstance(parsed, dict) and name and not too_deep(parsed):
        return ToolCall(call_id=call_id, name=name, arguments=parsed), None
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    problem = "a call needs a name and an object of arguments that is not nested too deeply"
    return ToolCall(call_id=call_id, name=name, arguments={}, error=problem), text


def wire_call(call: ToolCall, raw: str | None = None) -> dict[str, Any]:
    """Return a call as an entry of `Message["tool_calls"]`; arguments that are not an object stay text."""
    arguments = dict(call.arguments) if raw is None else raw
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def assistant(text: str, calls: Sequence[ToolCall], raw: Mapping[str, str]) -> Message:
    """Return a turn as the model itself reads it later."""
    wire = [wire_call(call, raw.get(call.call_id)) for call in calls]
    return Message(role="assistant", content=text, tool_calls=wire) if wire else Message(role="assistant", content=text)


def spoken(text: str, calls: Sequence[tuple[ToolCall, str | None]]) -> Message:
    """Return a turn as the model itself reads it later, from its calls as `native_call` returns them."""
    return assistant(text, [call for call, _ in calls], {call.call_id: raw for call, raw in calls if raw is not None})


def tool_message(result: ToolResult) -> Message:
    """Return a result as the model reads it."""
    message = Message(role="tool", content=result.content, tool_call_id=result.call_id)
    return Message(**message, name=result.name) if result.name else message


@dataclass(slots=True)
class _OpenTurn:
    context: tuple[Message, ...]
    text: str
    calls: tuple[ToolCall, ...]
    reasoning: str | None
    details: dict[str, Any]
    results: list[ToolResult] = field(default_factory=list)


class _Hole:
    """Gaps in a growing conversation, each checked only where it continues the one before."""

    def __init__(self) -> None:
        self._seen: list[Message] = []
        self._calls: dict[str, None] = {}
        self._unanswered: dict[str, None] = {}
        self._stray = False

    def of(self, context: Sequence[Message], known: Mapping[str, Any]) -> str:
        """Return what is missing in `context`, or an empty text; `known` are the ids of calls that it may not show."""
        if list(context[: len(self._seen)]) != self._seen:
            self._seen, self._calls, self._unanswered, self._stray = [], {}, {}, False
        for message in context[len(self._seen) :]:
            if message["role"] == "assistant":
                ids = [str(call.get("id")) for call in message.get("tool_calls", ())]
                self._calls.update(dict.fromkeys(ids))
                self._unanswered.update(dict.fromkeys(ids))
            elif message["role"] == "tool":
                self._answered(message.get("tool_call_id", ""), known)
        self._seen = list(context)
        return "the result of a call" if self._unanswered else "the call of a result" if self._stray else ""

    def _answered(self, call_id: str, known: Mapping[str, Any]) -> None:
        if call_id in self._unanswered:
            del self._unanswered[call_id]
        elif not call_id and self._unanswered:
            del self._unanswered[next(iter(self._unanswered))]
        elif call_id and call_id not in self._calls and call_id not in known:
            self._stray = True


class ConversationRecorder:
    """One conversation during replay.

    Args:
        exact: call ids stay as they are; else repeated ids of a log are made unique (`call_ids`).
    """

    def __init__(self, messages: Iterable[Message] = (), *, exact: bool = False) -> None:
        self._exact = exact
        self.context: list[Message] = list(messages)
        """The messages the model has seen so far."""
        self._turns: list[_OpenTurn] = []
        self._hole = _Hole()
        self._asked: dict[str, _OpenTurn] = {}

    def say(self, message: Message) -> None:
        """Record a message by anyone other than the model."""
        self.context.append(message)

    def restart(self, messages: Iterable[Message]) -> None:
        """Replace the messages the model sees from here on, as after a compaction."""
        self.context = list(messages)

    def answer(
        self,
        text: str,
        calls: Iterable[tuple[ToolCall, str | None]] = (),
        *,
        reasoning: str | None = None,
        details: Mapping[str, Any] | None = None,
        message: Message | None = None,
        shown: bool = True,
        counted: bool = True,
        whole: bool = False,
    ) -> None:
        """Record the model's answer to what it has seen.

        Args:
            calls: each with its arguments as text where they are not an object (see `native_call`).
            message: how the model sees its answer later, where its calls are not native.
            shown: it sees its answer later at all.
            counted: this is a turn; else it is one of another trace, and here only context.
            whole: the context is known to be what the model saw. Else a call in it without a result, or a result without a
                call, marks the turn `incomplete`: no interface takes such a conversation, so the log lost something.
        """
        pairs = list(calls)
        raw = {call.call_id: broken for call, broken in pairs if broken is not None}
        known = {**(details or {}), **({RAW: raw} if raw else {})}
        if not whole and INCOMPLETE not in known and (hole := self._hole.of(self.context, self._asked)):
            known[INCOMPLETE] = hole
        turn = _OpenTurn(tuple(self.context), text, tuple(call for call, _ in pairs), reasoning or None, known)
        if counted:
            self._turns.append(turn)
        self._asked.update({call.call_id: turn for call in turn.calls})
        if shown:
            self.context.append(message or spoken(text, pairs))

    def call(self, call_id: str) -> ToolCall | None:
        """Return the call of that id, if the model made one."""
        turn = self._asked.get(call_id)
        return next((call for call in turn.calls if call.call_id == call_id), None) if turn else None

    def waiting(self, name: str) -> str:
        """Return the id of the last answer's first call that has no result yet, of the tool `name` where it called that; else
        empty."""
        turn = next(reversed(self._asked.values()), None)
        answered = {result.call_id for result in turn.results} if turn else set()
        ids = {call.call_id: call.name for call in turn.calls if call.call_id not in answered} if turn else {}
        return next((call_id for call_id, called in ids.items() if called == name), next(iter(ids), ""))

    def result(self, result: ToolResult, message: Message | None = None) -> None:
        """Record the result of a call; `message` is how the model reads it, where it is not a tool message."""
        self.note(result)
        self.context.append(message or tool_message(result))

    def note(self, result: ToolResult, *, last: bool = False) -> None:
        """Record a result that the model reads elsewhere or never. A call that is not known, or `last`: it belongs to the last
        turn."""
        turn = None if last else self._asked.get(result.call_id)
        if turn is None and self._turns:
            turn = self._turns[-1]
        if turn is not None:
            turn.results.append(result)

    def doubt(self, what: str) -> None:
        """Mark that something is missing that may have been a part of the last answer, unless its calls have been answered."""
        if self._turns and not self._turns[-1].results:
            self._turns[-1].details.setdefault(INCOMPLETE, what)

    def forget_last(self, response_id: str) -> bool:
        """Take the last turn back if its `response_id` is this one: it answered something other than its context."""
        if not response_id or not self._turns or self._turns[-1].details.get("response_id") != response_id:
            return False
        self._turns.pop()
        return True

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages before the first turn."""
        return self.turns()[0].context if self._turns else tuple(self.context)

    def turns(self) -> tuple[TraceTurn, ...]:
        """Return every answer, with what its calls returned."""
        turns = tuple(
            TraceTurn(
                context=turn.context,
                text=turn.text,
                tool_calls=turn.calls,
                results=tuple(turn.results),
                reasoning=turn.reasoning,
                details=turn.details,
            )
            for turn in self._turns
        )
        return turns if self._exact else distinct_ids(turns, (RAW, SCRIPTS))

    def trace(self, trajectory_id: str, format: str, **facts: Any) -> Trace:  # noqa: A002
        """Return the conversation as a trace; `facts` are its other fields."""
        return Trace(trajectory_id=trajectory_id, format=format, turns=self.turns(), **{"messages": self.opening, **facts})
