"""New values near those that tests use, of the same type. Values are in the encoding of `sandbox.grading.literals`.

Whether the project says anything about what follows from one is decided elsewhere (`tasks.held_out.book`), by what the gold code
runs for it.
"""

from __future__ import annotations

import random
import re
import string
from typing import Any

_NUMBER, _WORD, _EITHER = re.compile(r"[0-9]+"), re.compile(r"[A-Za-z]+"), re.compile(r"[0-9]+|[A-Za-z]+")
_FIELD = re.compile(r"(?<=[0-9])([.:/-])([0-9]+)")
"""A number behind a separator that stands behind another number."""
_DIGITS = 15
"""Digits of a number in a text that are read."""
_FAR = 0.3
"""Probability that a number in a text becomes any of as many digits (one of one digit: of two), and not one near to it."""
_SAME_SHAPE = 0.5
"""Probability that a changed text keeps its shape, as what a test accepts often must."""
_HOLDING = frozenset({"list", "tuple", "set", "frozenset", "dict"})
_MANY = 10
"""Items above which work that looks at the first few alone shows."""
_AGAIN, _AT_END, _DRAWS = 0.3, 0.5, 4
"""Probabilities that a further item is one that stands there already, and that the last one is the first again; and draws of one
that does not stand there."""
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
            less = abs(value - 1) if value >= 0 else value - 1
            near = [value + 1, value + 2, value + rng.randint(3, 9), value * 2, value * rng.randint(3, 10), less]
            return rng.choice([*near, other, (value + other) // 2])
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


def grown(value: Any, rng: random.Random) -> Any:
    """Return a list, tuple, set or dict with more items: near to its own, in a list or tuple some of them again. What is empty,
    and anything else, is returned as it is."""
    match value:
        case ["list" | "tuple" | "set" | "frozenset" | "dict" as kind, [_, *_] as items]:
            length = rng.choice([len(items) + 1, 2 * len(items) + 1, max(len(items), _MANY) + rng.randint(1, _MANY)])
            return [kind, _grown_items(items, kind, min(length, len(items) + 2 * _MANY), rng)]
    return value


def shape_of(text: str) -> str:
    """Return a text with one `0` for each number and one `a` for each word: `3.4.5-rc1` is like `1.2.10-beta2`."""
    return _WORD.sub("a", _NUMBER.sub("0", text))


def words_of(value: Any) -> list[str]:
    """Return the numbers and words of a value: whole numbers, and those in its texts."""
    match value:
        case str():
            return _EITHER.findall(value)
        case int() if not isinstance(value, bool):
            return [str(abs(value))]
        case [str(kind), list(items)] if kind in _HOLDING:
            parts = [part for pair in items for part in pair] if kind == "dict" else items
            return [word for part in parts for word in words_of(part)]
    return []


def new_word(word: str, rng: random.Random) -> str:
    """Return another number, or a word with another letter."""
    return _same_shape(word, rng)


def with_word(value: Any, old: str, new: str) -> Any:
    """Return a value with one of its words or numbers replaced wherever it stands."""
    match value:
        case str():
            return _EITHER.sub(lambda found: new if found.group() == old else found.group(), value)
        case int() if not isinstance(value, bool) and old.isdigit():
            return (int(new) if value >= 0 else -int(new)) if str(abs(value)) == old else value
        case [str(kind), list(items)] if kind in _HOLDING:
            if kind == "dict":
                return [kind, [[with_word(part, old, new) for part in pair] for pair in items]]
            return [kind, [with_word(item, old, new) for item in items]]
    return value


def _changed_text(mine: str, theirs: str, rng: random.Random) -> str:
    for _ in range(_DRAWS):
        new = _other_text(mine, theirs, rng)
        if _keeps_fields(new, mine, theirs):
            return new
    return theirs


def _keeps_fields(new: str, *known: str) -> bool:
    """Return whether the numbers behind a separator are as wide in a text as in known ones, where these all have one width of two
    digits or more behind it. `45.01` is 45 and a hundredth, and of `45.1` most projects say nothing."""
    widths: dict[str, set[int]] = {}
    for separator, digits in (found for text in known for found in _FIELD.findall(text)):
        widths.setdefault(separator, set()).add(len(digits))
    fixed = {separator: found for separator, found in widths.items() if len(found) == 1 and min(found) > 1}
    return all(len(digits) in fixed.get(separator, {len(digits)}) for separator, digits in _FIELD.findall(new))


def _other_text(mine: str, theirs: str, rng: random.Random) -> str:
    if rng.random() < _SAME_SHAPE and (alike := _same_shape(mine, rng)) != mine:
        return alike
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


def _same_shape(text: str, rng: random.Random) -> str:
    """Change one number of a text, or one letter of a word, where there is one."""
    parts = [*_NUMBER.finditer(text), *_WORD.finditer(text)]
    if not parts:
        return text
    part = rng.choice(parts)
    found = part.group()
    if found.isdigit():
        width = min(len(found), _DIGITS)
        near, far = int(found[:_DIGITS]) + rng.randint(1, 9), rng.randrange(10 ** (width - 1), 10 ** max(width, 2))
        new = str(far if rng.random() < _FAR else near).zfill(len(found))
    else:
        at = rng.randrange(len(found))
        letter = rng.choice(string.ascii_lowercase)
        new = found[:at] + (letter.upper() if found[at].isupper() else letter) + found[at + 1 :]
    return text[: part.start()] + new + text[part.end() :]


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


def _grown_items(mine: list[Any], kind: str, length: int, rng: random.Random) -> list[Any]:
    """Add items: new ones, or new ones and an old one at the end, or some of both."""
    items, again = list(mine), rng.choice((0.0, 0.0, 0.0, _AGAIN))
    at_end = kind in ("list", "tuple") and rng.random() < _AT_END
    for _ in range(length - len(mine) - at_end):
        old = rng.choice(items)
        if kind == "dict":
            new = [changed(old[0], old[0], rng), changed(old[1], old[1], rng)]
            items += [new] if new[0] not in [pair[0] for pair in items] else []
            continue
        found = [new for new in (changed(old, old, rng) for _ in range(_DRAWS)) if new not in items][:1]
        items += [old] if kind in ("list", "tuple") and rng.random() < again else found
    return [*items, mine[0]] if at_end else items


def _alike(items: list[Any]) -> bool:
    return len({kind_of(item) for item in items}) == 1
