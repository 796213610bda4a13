"""The interface of readers of foreign logs, and their registry.

A separate package adds one by an entry point of the group `composer_replication.trace_readers` that names a `Reader` object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from composer_replication.traces.source import Dropped, Problem, UnreadableError, document, holds
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Trace

GROUP = "composer_replication.trace_readers"
_BUILTIN = (
    "own",
    "readers.claude_code",
    "readers.codex",
    "readers.openhands",
    "readers.swe_agent",
    "readers.mini_swe_agent",
    "readers.atif",
    "readers.openai_chat",
)
"""Modules of this package with a `READER`, in the order in which they are tried; the last knows the most general form."""

Item: TypeAlias = Trace | Problem | Dropped


class Reader(Protocol):
    """One format of logs."""

    @property
    def name(self) -> str: ...

    def sniff(self, path: Path, /) -> bool:
        """Return whether the file or folder at `path` is of this format. Reads little and never raises for what it finds."""
        ...

    def read(self, path: Path, /) -> Iterator[Item]:
        """Yield the traces of one file or folder that `sniff` knows, and what was not taken; never raises for what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class FileReader:
    """A format of single files, told by what the first record in them holds."""

    name: str
    knows: Callable[[dict[str, Any]], bool]
    read: Callable[[Path], Iterator[Item]]

    def sniff(self, path: Path, /) -> bool:
        return holds(path, self.knows)


def of_document(convert: Callable[[Any, Path], Iterator[Item]]) -> Callable[[Path], Iterator[Item]]:
    """Return the `read` of a format whose files are one JSON document each: parse it, then `convert` the value."""

    def read(path: Path) -> Iterator[Item]:
        try:
            value = document(path)
        except UnreadableError as error:
            yield Problem(path, str(error))
            return
        yield from convert(value, path)

    return read


@cache
def readers() -> dict[str, Reader]:
    """Return every reader by name: those of this package, then those of entry points, which replace one of the same name."""
    found: dict[str, Reader] = {}
    for module in _BUILTIN:
        reader: Reader = import_module(f"composer_replication.traces.{module}").READER
        found[reader.name] = reader
    for entry in entry_points(group=GROUP):
        reader = entry.load()
        found[reader.name] = reader
    return found


def reader_for(name: str) -> Reader:
    """Return the reader of that name. Raises ConfigError for an unknown one."""
    if name not in readers():
        raise ConfigError(f"no reader of traces is called {name!r}", fix=f"choose one of: {', '.join(readers())}")
    return readers()[name]
