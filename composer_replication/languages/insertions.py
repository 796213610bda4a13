"""Texts put into a source at byte offsets, around parts that may lie in each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Insertion:
    """A text before a part of a source, and one behind it."""

    start: int
    end: int
    before: str
    after: str = ""


def inserted(source: bytes, insertions: Iterable[Insertion]) -> bytes:
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
