"""Variations of the values that a call is given."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence

from composer_replication.languages.calls.values import Value, nodes_of

_BITS = {
    **{"int8": 7, "int16": 15, "int32": 31, "int64": 63, "int": 63, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64},
    **{"i8": 7, "i16": 15, "i32": 31, "i64": 63, "isize": 63, "i128": 127},
    **{"u8": 8, "u16": 16, "u32": 32, "u64": 64, "usize": 64, "u128": 128},
    **{"Byte": 7, "Short": 15, "Integer": 31, "Long": 63},
}
_MOST_ITEMS = 40


def varied(values: Sequence[Value], others: Sequence[Sequence[Value]], rng: random.Random) -> list[Value]:
    """Return the values of a call with one of them changed: a number, a letter, a digit, an item more or less, or the value that
    another call has in this place.

    Args:
        others: the values of other calls of the same function.
    """
    copied: list[Value] = json.loads(json.dumps(list(values)))
    at = rng.randrange(len(copied))
    here = [other[at] for other in others if len(other) > at]
    if here and rng.random() < 0.3:
        copied[at] = json.loads(json.dumps(rng.choice(here)))
        return copied
    leaves = [node for node in _changeable(copied[at]) if node["k"] in ("bool", "int", "uint", "float", "string", "list")]
    if leaves:
        _change(rng.choice(leaves), rng)
    return copied


def _changeable(value: Value) -> Iterator[Value]:
    """Yield a value and all inside it, but the names of an object's fields: work may count on them."""
    names = [key for node in nodes_of(value) if node["k"] == "map" and node["t"] == "Object" for key, _ in node["e"]]
    return (node for node in nodes_of(value) if not any(node is name for name in names))


def _change(node: Value, rng: random.Random) -> None:
    match node["k"]:
        case "bool":
            node["v"] = "false" if node["v"] == "true" else "true"
        case "int" | "uint":
            bits = _BITS.get(node["t"], 31)
            low = 0 if node["k"] == "uint" else -(1 << bits)
            moved = int(node["v"]) + rng.choice([1, -1, 2, 3, 7, 10, 100, int(node["v"])])
            node["v"] = str(min(max(moved, low), (1 << bits) - 1))
        case "float" if node["t"] == "number" and float(node["v"]).is_integer():
            moved = int(float(node["v"])) + rng.choice([1, -1, 2, 3, 7, 10, 100, int(float(node["v"]))])
            node["v"] = str(moved)
        case "float":
            node["v"] = repr(float(node["v"]) * rng.choice([2, 0.5, -1, 1]) + rng.choice([0, 1, 0.25, -3]))
        case "string":
            node["v"] = _changed_text(node["v"], rng)
        case "list":
            _change_list(node, rng)


def _changed_text(text: str, rng: random.Random) -> str:
    digits = [match.start() for match in re.finditer(r"\d", text)]
    letters = [match.start() for match in re.finditer(r"[A-Za-z]", text)]
    ways = (["digit"] * 2 if digits else []) + (["letter"] * 2 if letters else []) + ["twice", "part"]
    match rng.choice(ways):
        case "digit":
            at = rng.choice(digits)
            return text[:at] + rng.choice("123456789") + text[at + 1 :]
        case "letter":
            at = rng.choice(letters)
            alphabet = "abcdefghijklmnopqrstuvwxyz"
            new = rng.choice(alphabet if text[at].islower() else alphabet.upper())
            return text[:at] + new + text[at + 1 :]
        case "twice" if len(text) < 500:
            return text + text
    return text[: rng.randrange(len(text) + 1)]


def _change_list(node: Value, rng: random.Random) -> None:
    items: list[Value] = node["e"]
    if node["t"].startswith("[") and not node["t"].startswith("[]"):  # an array keeps its length
        rng.shuffle(items)
    elif items and rng.random() < 0.6 and len(items) < _MOST_ITEMS:
        items.append(json.loads(json.dumps(rng.choice(items))))
        if rng.random() < 0.5:
            rng.shuffle(items)
    elif items:
        items.pop(rng.randrange(len(items)))
