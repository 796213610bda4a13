"""Values of calls as plain data, whatever the language: what is inside them, and whether two differ."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Value: TypeAlias = dict[str, Any]
"""`k` is the kind (`bool`, `int`, `uint`, `float`, `string`, `name` of a variant, `list`, `map`, `struct`, `pointer`,
`interface`, `nil`, or one that cannot be looked at), `t` the type as the language writes it, `v` the text of a plain value, `e`
what is inside."""

NUMBER = re.compile(r"NaN|-?Infinity|-?\d+(\.\d+)?([eE][+-]?\d+)?|-?inf|nan")
"""The text of a float."""
_CLOSE, _NEAR_ZERO = 1e-9, 1e-12


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


def is_made_of(value: Any, is_node: Callable[[Any], bool]) -> bool:
    """Return whether untrusted data is a value of which a language knows every part.

    Args:
        is_node: returns whether it knows a part; it may raise what reading data of another shape raises.
    """
    try:
        return all(map(is_node, nodes_of(value)))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return False


def differs(expected: Any, found: Any) -> bool:
    """Return whether what the work gives is not what the gold code gives.

    Floats may differ by a billionth of what is expected and a little near zero, an empty list or map is as none, and a struct may
    have more fields than the gold code's.
    """
    if not isinstance(found, dict) or not isinstance(expected, dict):
        return bool(expected != found)
    if _empty(expected) and _empty(found) and "nil" in (expected.get("k"), found.get("k")):
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
    if expected == found:
        return True
    try:
        return math.isclose(float(expected), float(found), rel_tol=_CLOSE, abs_tol=_NEAR_ZERO)
    except (TypeError, ValueError, OverflowError):
        return bool(expected == found)
