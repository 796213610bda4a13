"""Access to fields of untrusted records of any type."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from composer_replication.traces.recorder import native_call
from composer_replication.types import ToolCall


def string(record: Mapping[str, Any], *path: str) -> str:
    """Return the text at a path of keys; empty when there is none or it is something else."""
    value = _at(record, path)
    return value if isinstance(value, str) else ""


def number(record: Mapping[str, Any], *path: str) -> int | float | None:
    """Return the number at a path of keys, or None; a number that a float cannot hold counts as none."""
    value = _at(record, path)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max else None


def section(record: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """Return the object at a path of keys; empty when there is none or it is something else."""
    value = _at(record, path)
    return value if isinstance(value, dict) else {}


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; nothing when it is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def present(**values: Any) -> dict[str, Any]:
    """Keep the values that are not empty."""
    return {name: value for name, value in values.items() if value not in (None, "", {}, [], ())}


def native_calls(calls: Any) -> list[tuple[ToolCall, str | None]]:
    """Return each of a message's `tool_calls` as `native_call` reads it; nothing when they are not a list."""
    return [
        native_call(string(call, "id"), string(call, "function", "name"), section(call, "function").get("arguments"))
        for call in objects_in(calls)
    ]


def text_of(content: Any) -> tuple[str, str]:
    """Return `(text, missing)` of a message's content, a text or a list of parts; `missing` names what text cannot hold, e.g.
    `image`.

    Parts follow each other on separate lines; `[image]` stands for one. A `tool_reference`, by which a search of Claude's tools
    answers, is the tool's name: the interface loads that tool's description, and descriptions are no part of messages.
    """
    if isinstance(content, str):
        return content, ""
    if content is None:
        return "", ""
    if not isinstance(content, list):
        return "", type(content).__name__
    texts: list[str] = []
    missing = ""
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict) and part.get("type") == "tool_reference" and isinstance(part.get("tool_name"), str):
            texts.append(part["tool_name"])
        else:
            kind = str(part.get("type", "part")) if isinstance(part, dict) else type(part).__name__
            missing = kind[:40]
            texts.append(f"[{missing}]")
    return "\n".join(texts), missing


def _at(record: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record
