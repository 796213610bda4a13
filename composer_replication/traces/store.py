"""Imported traces on disk: one trace per line, each context encoded by what it shares with the one before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer_replication.observe.files import read_lines, replace_file
from composer_replication.traces.schema import TraceShape, check
from composer_replication.traces.source import UnreadableError
from composer_replication.types import Message, from_json, to_json
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Trace, TraceTurn

MAX_CONTEXT = 100_000
"""Messages of one context that are read back."""


def write_traces(path: Path | str, traces: Iterable[Trace]) -> None:
    """Write `traces` to `path`, one JSON line each, atomically.

    A line grows with the messages of its trace, not with the sum of its contexts. `details` must be JSON data.

    Raises:
        StorageError: it could not be written; what was at `path` is still there.
    """
    replace_file(Path(path), (json.dumps(trace_to_json(trace)).encode() + b"\n" for trace in traces))


def read_traces(path: Path | str) -> Iterator[Trace]:
    """Yield the traces of a file that `write_traces` wrote.

    Raises:
        ConfigError: there is no such file, or a line is not a trace.
        StorageError: the file cannot be read, or a line is not JSON, as where the file ends in the middle of one.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"there are no traces at {path}", fix="name a folder that `composer traces import ... --out` wrote")
    for number, line in enumerate(read_lines(path, appended=False), start=1):
        try:
            yield trace_from_json(line)
        except UnreadableError as error:
            raise ConfigError(f"{path}, line {number}: not a trace of this release ({error})", fix="import it again") from error


def is_temporary(path: Path) -> bool:
    """Return whether `write_traces` or another writer of ours keeps an unfinished file under this name."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def trace_to_json(trace: Trace) -> dict[str, Any]:
    """Return plain JSON data of a trace."""
    record: dict[str, Any] = {name: to_json(getattr(trace, name)) for name in _PLAIN}
    previous, turns = trace.messages, []
    names: dict[int, str] = {}
    for turn in trace.turns:
        fields = {name: to_json(getattr(turn, name)) for name in _PLAIN_OF_TURN}
        turns.append({"context": context_steps(previous, turn.context, names), **fields})
        previous = turn.context
    return {**record, "turns": turns}


_PLAIN = ("trajectory_id", "format", "messages", "tools", "task_id", "agent", "model", "reward", "details")
_PLAIN_OF_TURN = ("text", "tool_calls", "results", "reasoning", "details")


def trace_from_json(data: dict[str, Any]) -> Trace:
    """Invert `trace_to_json`. Raises UnreadableError, a ValueError, for anything else."""
    check(TraceShape, data)
    previous: tuple[Message, ...] = tuple(data["messages"])
    turns = []
    for record in data["turns"]:
        previous = context_from(previous, record["context"])
        turns.append(from_json(TraceTurn, {name: record[name] for name in _PLAIN_OF_TURN} | {"context": previous}))
    return replace(from_json(Trace, {name: data[name] for name in _PLAIN} | {"turns": ()}), turns=tuple(turns))


def context_steps(previous: Sequence[Message], context: Sequence[Message], names: dict[int, str]) -> list[Any]:
    """Return how `context` derives from `previous`: `[start, end]` for a kept stretch, a message for a new one.

    Args:
        names: what messages are equal by, per object; pass one dictionary for the contexts of one trace, which share them.
    """
    shared = 0
    for old, new in zip(previous, context, strict=False):
        if old is not new:
            break
        shared += 1
    steps: list[Any] = [[0, shared]] if shared else []
    if shared == len(context):
        return steps
    keys = [_name(message, names) for message in previous]
    places: dict[str, int] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, place)
    end = shared  # where in `previous` the last stretch ends
    for message in context[shared:]:
        key = _name(message, names)
        place = end if end < len(keys) and keys[end] == key else places.get(key, -1)
        if place < 0:
            steps.append(message)
            end += 1  # mostly it stands for the one that was there
            continue
        if steps and isinstance(steps[-1], list) and steps[-1][1] == place:
            steps[-1][1] += 1
        else:
            steps.append([place, place + 1])
        end = place + 1
    return steps


def context_from(previous: Sequence[Message], steps: Sequence[Any]) -> tuple[Message, ...]:
    """Invert `context_steps`. Raises UnreadableError for a context that no model could read."""
    context: list[Message] = []
    for step in steps:
        if isinstance(step, list):
            context.extend(previous[step[0] : step[1]])
        else:
            context.append(step)
        if len(context) > MAX_CONTEXT:  # stretches of stretches double with every turn
            raise UnreadableError(f"a context of more than {MAX_CONTEXT} messages")
    return tuple(context)


def _name(message: Message, names: dict[int, str]) -> str:
    if id(message) not in names:
        names[id(message)] = json.dumps(message)
    return names[id(message)]
