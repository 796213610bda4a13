"""Values of Go calls, in the form of `values.go`, written as Go source."""

from __future__ import annotations

import json
import re
from typing import Any

from composer_replication.languages.calls.values import Value, nodes_of


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
