"""Values of Java calls, in the form of `Values.java`: which of them can be made again."""

from __future__ import annotations

import re
from typing import Any

from composer_replication.languages.calls.values import NUMBER, is_made_of

_INTS = frozenset({"Integer", "Long", "Short", "Byte"})
_FLOATS = frozenset({"Double", "Float"})
_TYPE = re.compile(r"[\w.$]+(\[\])*")


def is_value(value: Any) -> bool:
    """Return whether untrusted data is a value that `Made.java` makes."""
    return is_made_of(value, _is_node)


def _is_node(node: Any) -> bool:
    kind, text = node["k"], node.get("v")
    if kind == "nil":
        return True
    if not isinstance(node["t"], str) or _TYPE.fullmatch(node["t"].removeprefix("enum ")) is None:
        return False
    match kind:
        case "bool":
            return text in ("true", "false")
        case "int":
            return node["t"] in _INTS and isinstance(text, str) and re.fullmatch(r"-?\d+", text) is not None
        case "float":
            return node["t"] in _FLOATS and isinstance(text, str) and NUMBER.fullmatch(text) is not None
        case "string":
            return isinstance(text, str)
        case "list" | "map":
            return isinstance(node["e"], list) and (kind == "list" or all(len(pair) == 2 for pair in node["e"]))
        case "struct":
            return all(isinstance(name, str) for name, _ in node["e"])
    return False
