"""New arguments near those that tests use: put together from theirs, of the same types, at the same places.

Values are in the encoding of `sandbox.literals`. Whether the project says anything about what such a call should do is decided
elsewhere (`tasks.hidden`), by what the gold code runs for it.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

_ATTEMPTS = 4
"""Draws per wanted call."""
_TAKEN = 0.3
"""Probability of taking an argument of another call as it is."""


def vary(recorded: Sequence[str], rng: random.Random, count: int) -> list[str]:
    """Return at most `count` argument lists (JSON `[positional, keyword]`) that differ from the recorded ones and each other."""
    parsed = [json.loads(arguments) for arguments in recorded]
    known = set(recorded)
    found: list[str] = []
    for _ in range(_ATTEMPTS * count):
        if not parsed or len(found) == count:
            break
        child = _mixed(rng.choice(parsed), rng.choice(parsed), rng)
        written = json.dumps(child)
        if written not in known:
            known.add(written)
            found.append(written)
    return found


def _mixed(mine: list[Any], theirs: list[Any], rng: random.Random) -> list[Any]:
    """Return the arguments `mine` with one changed and some taken from `theirs`, where that is of the same kind."""
    child = copy.deepcopy(mine)
    slots = [(0, at) for at in range(len(child[0]))] + [(1, name) for name in child[1]]
    rng.shuffle(slots)
    for number, (part, at) in enumerate(slots):
        other = _at(theirs, part, at)
        if other is None or _kind(other) != _kind(child[part][at]):
            other = child[part][at]
        if number == 0:
            child[part][at] = _changed(child[part][at], other, rng)
        elif rng.random() < _TAKEN:
            child[part][at] = other
    return child


def _at(arguments: list[Any], part: int, at: Any) -> Any:
    """Return the value at a place, None where there is none."""
    if part == 1:
        return arguments[1].get(at)
    return arguments[0][at] if at < len(arguments[0]) else None


def _kind(written: Any) -> str:
    """Return the type, with that of the first item, or the class or function it stands for."""
    if not isinstance(written, list):
        return type(written).__name__
    if written[0] in ("built", "made"):
        return f"{written[0]} {written[1]}"
    items = written[1] if len(written) > 1 and isinstance(written[1], list) else []
    return f"{written[0]} {_kind(items[0])}" if items and written[0] in ("list", "tuple", "set", "frozenset") else str(written[0])


def _changed(value: Any, other: Any, rng: random.Random) -> Any:
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
        case ["made", target, *arguments]:
            return ["made", target, *_mixed(arguments, other[2:], rng)]
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
        swapped = [*mine[:at], _changed(mine[at], rng.choice(mine), rng) if _alike(mine) else mine[at], *mine[at + 1 :]]
        options += [mine[::-1], mine[: len(mine) // 2] + theirs[len(theirs) // 2 :], swapped]
    elif kind == "dict":
        keys = [pair[0] for pair in mine]
        options.append(mine + [pair for pair in theirs if pair[0] not in keys])
    else:
        options.append(mine + [item for item in theirs if item not in mine])
    return rng.choice(options)


def _alike(items: list[Any]) -> bool:
    return len({_kind(item) for item in items}) == 1
