"""Sources with texts put in at byte offsets, around parts that may lie in each other: what instrumented code is made with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SourceInsertion:
    """A text before a part of a source, and one behind it."""

    start: int
    end: int
    before: str
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrumented:
    """Sources that write down what they do."""

    files: Mapping[str, bytes]
    lines: Mapping[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Number of a block -> its file, and the lines that are its own."""


def inserted(source: bytes, insertions: Iterable[SourceInsertion]) -> bytes:
    """Put texts around parts of a source: at one place, what closes an inner part comes before what closes an outer one, and
    both before what opens the next."""
    places: list[tuple[int, int, int, str]] = []
    for one in insertions:
        places.append((one.start, 1, -one.end, one.before))
        if one.after:
            places.append((one.end, 0, -one.start, one.after))
    parts, last = [], 0
    for at, _, _, text in sorted(places):
        parts += [source[last:at], text.encode()]
        last = at
    return b"".join([*parts, source[last:]])
