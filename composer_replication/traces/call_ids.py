"""Unique ids. Of calls: where a log reuses ids with every answer, or has none, each result is still matched to one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from composer_replication.types import Message
from composer_replication.types.transcript import TraceTurn


def distinct_ids(turns: Sequence[TraceTurn], kept: Sequence[str]) -> tuple[TraceTurn, ...]:
    """Return the turns with `ID~2`, `ID~3`, ... for the later calls, and their results, when one id stood for several calls.

    Args:
        kept: the details of a turn that are kept by call id.
    """
    ids = [call.call_id for turn in turns for call in turn.tool_calls]
    ids += [call["id"] for message in (turns[0].context if turns else ()) for call in message.get("tool_calls", ())]
    if len(ids) == len(set(ids)):
        return tuple(turns)
    shared: dict[tuple[Any, ...], Message] = {}
    return tuple(_turn(turn, kept, shared) for turn in turns)


class UniqueNames:
    """Names that have been given, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._copies: Counter[str] = Counter()

    def free(self, name: str) -> str:
        """Return `name`, or with `~2`, `~3`, ... the first that is free."""
        found = name
        while found in self._taken:
            self._copies[name] += 1
            found = f"{name}~{self._copies[name] + 1}"
        self._taken.add(found)
        return found


class _CallNames:
    """The ids of one conversation from its beginning."""

    def __init__(self) -> None:
        self._names = UniqueNames()
        self._open: dict[str, list[str]] = {}

    def asked(self, ids: Iterable[str]) -> list[str]:
        """Return ids for the calls of one answer; results that follow are theirs."""
        given = [(name, self._names.free(name)) for name in ids]
        self._open.update({name: [] for name, _ in given})
        for name, found in given:
            self._open[name].append(found)
        return [found for _, found in given]

    def answered(self, name: str) -> str:
        """Return the id of the call that a result answers: of several the first without one."""
        waiting = self._open.get(name, [])
        return name if not waiting else waiting.pop(0) if len(waiting) > 1 else waiting[0]


def _turn(turn: TraceTurn, kept: Sequence[str], shared: dict[tuple[Any, ...], Message]) -> TraceTurn:
    names = _CallNames()
    context = tuple(_message(message, names, shared) for message in turn.context)
    new = names.asked(call.call_id for call in turn.tool_calls)
    calls = tuple(replace(call, call_id=name) for call, name in zip(turn.tool_calls, new, strict=True))
    named = list(zip((call.call_id for call in turn.tool_calls), new, strict=True))
    details = dict(turn.details)
    for detail in kept:
        if old := details.get(detail):
            details[detail] = {name: old[call_id] for call_id, name in named if call_id in old}
    results = tuple(replace(result, call_id=names.answered(result.call_id)) for result in turn.results)
    return replace(turn, context=context, tool_calls=calls, results=results, details=details)


def _message(message: Message, names: _CallNames, shared: dict[tuple[Any, ...], Message]) -> Message:
    if message.get("tool_calls"):
        new = names.asked(call["id"] for call in message["tool_calls"])
        calls = [{**call, "id": name} for call, name in zip(message["tool_calls"], new, strict=True)]
        changed = cast(Message, {**message, "tool_calls": calls})
    elif message["role"] == "tool":
        new = [names.answered(message.get("tool_call_id", ""))]
        changed = cast(Message, {**message, "tool_call_id": new[0]})
    else:
        return message
    return shared.setdefault((id(message), *new), changed)
