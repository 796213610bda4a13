"""Values of JavaScript calls, in the form of `values.cjs`: which of them can be made again."""

from __future__ import annotations

import re
from typing import Any

from composer_replication.languages.calls.values import NUMBER, is_made_of

_LISTS = frozenset(
    {
        *("Array", "Set", "Buffer", "Int8Array", "Uint8Array", "Uint8ClampedArray", "Int16Array", "Uint16Array", "Int32Array"),
        *("Uint32Array", "Float32Array", "Float64Array"),
    }
)
_TYPES = {
    "bool": frozenset({"boolean"}),
    "int": frozenset({"bigint"}),
    "float": frozenset({"number", "Date"}),
    "string": frozenset({"string", "RegExp", "URL"}),
    "list": _LISTS,
    "map": frozenset({"Map", "Object"}),
}


def is_value(value: Any) -> bool:
    """Return whether untrusted data is a value that `values.cjs` makes."""
    return is_made_of(value, _is_node)


def _is_node(node: Any) -> bool:
    kind, text = node["k"], node.get("v")
    if kind in _TYPES:
        if node["t"] not in _TYPES[kind]:
            return False
        return _is_inside(kind, node["e"]) if kind in ("list", "map") else isinstance(text, str) and _is_text(kind, text)
    if kind in ("struct", "function"):
        named = isinstance(node["t"], str) and bool(node["t"])
        fields = node.get("e", [])
        return named and (kind == "function" or all(isinstance(name, str) for name, _ in fields))
    return kind in ("undefined", "null")


def _is_inside(kind: str, inner: Any) -> bool:
    return isinstance(inner, list) and (kind == "list" or all(isinstance(pair, list) and len(pair) == 2 for pair in inner))


def _is_text(kind: str, text: str) -> bool:
    match kind:
        case "bool":
            return text in ("true", "false")
        case "int":
            return re.fullmatch(r"-?\d+", text) is not None
        case "float":
            return NUMBER.fullmatch(text) is not None
    return True
