"""Values of Go as plain data, in the form of `values.go`: written as Go source, varied, and compared."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

Value: TypeAlias = dict[str, Any]
"""`k` is the kind, `t` the type as the package writes it, `v` the text of a plain value, `e` what is inside."""

_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "int": 63, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
_CLOSE, _NEAR_ZERO = 1e-9, 1e-12
_MOST_ITEMS = 40


def as_source(value: Value) -> str:
    """Return the Go expression of a value that `composerGiven` wrote."""
    match value["k"]:
        case "nil":
            return "nil"
        case "bool" | "int" | "uint":
            return f"{value['t']}({value['v']})"
        case "float":
            return f"{value['t']}({float(value['v'])!r})"
        case "string":
            return f"{value['t']}({_quoted(value['v'])})"
        case "interface":
            return as_source(value["e"])
        case "pointer":
            inner = value["e"]
            if inner["k"] == "struct":
                return "&" + as_source(inner)
            return f"func() *{inner['t']} {{ v := {as_source(inner)}; return &v }}()"
        case "list":
            return f"{value['t']}{{{', '.join(map(as_source, value['e']))}}}"
        case "map":
            pairs = (f"{as_source(key)}: {as_source(inner)}" for key, inner in value["e"])
            return f"{value['t']}{{{', '.join(pairs)}}}"
        case "struct":
            return f"{value['t']}{{{', '.join(f'{name}: {as_source(inner)}' for name, inner in value['e'])}}}"
    raise ValueError(f"a value of the kind {value['k']} cannot be written down")


def _quoted(text: str) -> str:
    """Return a Go string literal: JSON's is one, but for slashes and half pairs, which do not occur."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f").replace("\ufeff", "\\ufeff")


def is_value(value: Any) -> bool:
    """Return whether untrusted data is a value that can be written as Go source."""
    try:
        as_source(value)
    except (KeyError, TypeError, ValueError, RecursionError):
        return False
    return all(
        re.fullmatch(r"[\w\[\]*{}]*", node.get("t", ""))
        and (node["k"] not in ("int", "uint") or re.fullmatch(r"-?\d+", node["v"]))
        and (node["k"] != "bool" or node["v"] in ("true", "false"))
        and (node["k"] != "struct" or all(re.fullmatch(r"\w+", name) for name, _ in node["e"]))
        for node in nodes_of(value)
    )


def nodes_of(value: Value) -> Iterator[Value]:
    """Yield a value and all inside it."""
    yield value
    inner = value.get("e")
    if isinstance(inner, dict):
        yield from nodes_of(inner)
    elif value["k"] == "list":
        for one in inner or ():
            yield from nodes_of(one)
    elif value["k"] == "map":
        for pair in inner or ():
            yield from nodes_of(pair[0])
            yield from nodes_of(pair[1])
    elif value["k"] == "struct":
        for _, one in inner or ():
            yield from nodes_of(one)


def varied(values: Sequence[Value], others: Sequence[Sequence[Value]], rng: random.Random) -> list[Value]:
    """Return the values of a call with one of them changed: a number, a letter, a digit, an item more or less, or the value that
    another call has in this place.

    Args:
        others: the values of other calls of the same function.
    """
    copied: list[Value] = json.loads(json.dumps(list(values)))
    at = rng.randrange(len(copied))
    if others and rng.random() < 0.3:
        copied[at] = json.loads(json.dumps(rng.choice(others)[at]))
        return copied
    leaves = [node for node in nodes_of(copied[at]) if node["k"] in ("bool", "int", "uint", "float", "string", "list")]
    if leaves:
        _change(rng.choice(leaves), rng)
    return copied


def _change(node: Value, rng: random.Random) -> None:
    match node["k"]:
        case "bool":
            node["v"] = "false" if node["v"] == "true" else "true"
        case "int" | "uint":
            bits = _BITS.get(node["t"], 31)
            low = 0 if node["k"] == "uint" else -(1 << bits)
            moved = int(node["v"]) + rng.choice([1, -1, 2, 3, 7, 10, 100, int(node["v"])])
            node["v"] = str(min(max(moved, low), (1 << bits) - 1))
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


def differs(expected: Any, found: Any) -> bool:
    """Return whether what the work gives is not what the gold code gives.

    Floats may differ by a billionth of what is expected and a little near zero, an empty list or map is as none, and a struct may
    have more fields than the gold code's.
    """
    if not isinstance(found, dict) or not isinstance(expected, dict):
        return bool(expected != found)
    if _empty(expected) and _empty(found):
        return False
    if any(expected.get(name) != found.get(name) for name in ("k", "t")):
        return True
    mine, theirs = expected.get("e"), found.get("e")
    match expected.get("k"):
        case "float":
            return not _close(expected.get("v"), found.get("v"))
        case "struct":
            return _fields_differ(mine, theirs)
    if isinstance(mine, dict):
        return differs(mine, theirs)
    if isinstance(mine, list):
        return not isinstance(theirs, list) or len(mine) != len(theirs) or any(map(_items_differ, mine, theirs))
    return bool(expected.get("v") != found.get("v"))


def _fields_differ(expected: Any, found: Any) -> bool:
    try:
        known = dict(found)
        return any(name not in known or differs(value, known[name]) for name, value in expected)
    except (TypeError, ValueError):
        return True


def _items_differ(expected: Any, found: Any) -> bool:
    if isinstance(expected, list):
        return not isinstance(found, list) or len(expected) != len(found) or any(map(_items_differ, expected, found))
    return differs(expected, found)


def _empty(value: Value) -> bool:
    return value.get("k") == "nil" or (value.get("k") in ("list", "map") and not value.get("e"))


def _close(expected: Any, found: Any) -> bool:
    try:
        return math.isclose(float(expected), float(found), rel_tol=_CLOSE, abs_tol=_NEAR_ZERO)
    except (TypeError, ValueError):
        return bool(expected == found)
