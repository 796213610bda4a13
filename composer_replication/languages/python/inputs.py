"""New values near those that tests use, of the same type. Values are in the encoding of `sandbox.grading.literals`.

Whether the project says anything about what follows from one is decided elsewhere (`tasks.held_out.book`), by what the gold code
runs for it.
"""

from __future__ import annotations

import random
from typing import Any

_NEW_ITEMS = 4
"""How often a changed item stands among the ways to change a list or dict, beside three or four that only move items."""


def kind_of(written: Any) -> str:
    """Return the type, with that of the first item."""
    if not isinstance(written, list):
        return type(written).__name__
    if written[0] == "built":
        return f"{written[0]} {written[1]}"
    items = written[1] if len(written) > 1 and isinstance(written[1], list) else []
    return (
        f"{written[0]} {kind_of(items[0])}" if items and written[0] in ("list", "tuple", "set", "frozenset") else str(written[0])
    )


def changed(value: Any, other: Any, rng: random.Random) -> Any:
    """Return a value similar to `value` and `other`, which are of one kind."""
    match value:
        case bool() | None:
            return other
        case int():
            near = [value + 1, value + 2, value * 2, abs(value - 1) if value >= 0 else value - 1, other, (value + other) // 2]
            return rng.choice(near)
        case str():
            return _changed_text(value, other, rng)
        case ["float", str(number)]:
            return ["float", repr(rng.choice([float(number) + 1.0, float(number) * 1.5, float(other[1]), float(number) / 2.0]))]
        case ["bytes" | "bytearray" as kind, str(mine)]:
            half = len(mine) // 4 * 2
            return [kind, rng.choice([mine[:half] + other[1][len(other[1]) // 4 * 2 :], mine + other[1], other[1]])]
        case ["list" | "tuple" | "set" | "frozenset" | "dict" as kind, list(items)]:
            return [kind, _changed_items(items, other[1], kind, rng)]
        case _:
            return other


def _changed_text(mine: str, theirs: str, rng: random.Random) -> str:
    words = mine.split(" ")
    at = rng.randrange(len(mine) + 1)
    options = [
        mine[: len(mine) // 2] + theirs[len(theirs) // 2 :],
        mine[:at] + mine[at + 1 :],
        " ".join(reversed(words)),
        mine + theirs,
        theirs,
    ]
    return rng.choice(options)


def _changed_items(mine: list[Any], theirs: list[Any], kind: str, rng: random.Random) -> list[Any]:
    if not mine:
        return theirs
    at = rng.randrange(len(mine))
    options = [mine[:at] + mine[at + 1 :], theirs]
    if kind in ("list", "tuple"):
        other = [*mine[:at], changed(mine[at], rng.choice(mine) if _alike(mine) else mine[at], rng), *mine[at + 1 :]]
        options += [mine[::-1], mine[: len(mine) // 2] + theirs[len(theirs) // 2 :], *[other] * _NEW_ITEMS]
    elif kind == "dict":
        keys, (key, value) = [pair[0] for pair in mine], mine[at]
        other = [*mine[:at], [key, changed(value, value, rng)], *mine[at + 1 :]]
        options += [mine + [pair for pair in theirs if pair[0] not in keys], *[other] * _NEW_ITEMS]
    else:
        options.append(mine + [item for item in theirs if item not in mine])
    return rng.choice(options)


def _alike(items: list[Any]) -> bool:
    return len({kind_of(item) for item in items}) == 1
