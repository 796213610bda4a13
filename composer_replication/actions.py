"""What an agent did, as text and as a canonical form in which two equal actions are equal strings.

An action is either tool calls or, without one, a final text. As text (`render_action`) a tool call is one line of JSON,
`{"name": ..., "arguments": {...}}`, whoever made it: student and teachers are compared, and later trained on, in one format.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.types import Message

__all__ = [
    "Call",
    "action_message",
    "canonical_action",
    "canonical_call",
    "canonical_text",
    "parse_action",
    "render_action",
    "too_deep",
]

MAX_NESTING = 64
"""Lists and objects that a call's arguments may have inside one another: what walks over them recurses, and stacks end."""

_PATH_ARGUMENTS = frozenset({"path", "file", "filename", "file_path", "dir", "directory", "folder", "cwd"})
_SHELL_ARGUMENTS = frozenset({"command", "cmd"})
_EMPHASIS = re.compile(r"(?<![\w*`])(\*\*|`)(?=\S)([^*`\n]*?\w)\1(?![\w*`])")
_LINE_MARK = re.compile(r"^[ \t]*(?:#{1,6}|>)[ \t]+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Call:
    """A well-formed tool call."""

    name: str
    arguments: Mapping[str, Any]


def too_deep(value: Any) -> bool:
    """Whether JSON data, such as a call's arguments, nests deeper than `MAX_NESTING`, itself counted. Does not recurse."""
    level = [value]
    for _ in range(MAX_NESTING):
        if not level:
            return False
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(inner, list | dict) for inner in level)


def render_action(content: str, calls: Sequence[Call]) -> str:
    """The action as text: one JSON line per call, or `content` when there is none. Prose beside a call is left out."""
    if not calls:
        return content.strip()
    return "\n".join(json.dumps({"name": c.name, "arguments": dict(c.arguments)}, ensure_ascii=False) for c in calls)


def parse_action(text: str) -> tuple[str, tuple[Call, ...]]:
    """Inverse of `render_action`: `(content, calls)`, one of which is empty. Anything that is not all tool calls is content."""
    calls = [_parse_line(line) for line in text.split("\n") if line.strip()]
    found = tuple(c for c in calls if c is not None)
    return ("", found) if found and len(found) == len(calls) else (text, ())


def _parse_line(line: str) -> Call | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or set(value) != {"name", "arguments"}:
        return None
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or not name or not isinstance(arguments, dict) or too_deep(arguments):
        return None
    return Call(name, arguments)


def action_message(text: str, *, turn: int = 0) -> Message:
    """The action a text stands for as an assistant message; its calls are named `call_{turn}_{i}`."""
    content, calls = parse_action(text)
    if not calls:
        return Message(role="assistant", content=content)
    wire = [
        {"id": f"call_{turn}_{i}", "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
        for i, c in enumerate(calls)
    ]
    return Message(role="assistant", content="", tool_calls=wire)


def canonical_action(content: str, calls: Sequence[Call]) -> str:
    """A string that is equal for equal actions: the canonical calls in order, or the canonical text."""
    if calls:
        return "\n".join(canonical_call(c.name, c.arguments) for c in calls)
    return canonical_text(content)


def canonical_call(name: str, arguments: Mapping[str, Any]) -> str:
    """One call with sorted keys, null arguments dropped, POSIX paths normalised and shell whitespace and quoting unified.

    Order of shell words is kept, so `pytest -q tests` and `pytest tests -q` differ: only what is certainly equal is equal.
    """
    clean = {key: _canonical_value(key, value) for key, value in arguments.items() if value is not None}
    return json.dumps([name, clean], sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _canonical_value(key: str, value: Any) -> Any:
    if isinstance(value, str) and key in _PATH_ARGUMENTS:
        return posixpath.normpath(value.strip()) if value.strip() else ""
    if isinstance(value, str) and key in _SHELL_ARGUMENTS:
        return _shell_words(value)
    if isinstance(value, Mapping):
        return {k: _canonical_value(k, v) for k, v in value.items() if v is not None}
    return value


def _shell_words(command: str) -> list[str] | str:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    if "\n" in command.strip():
        return command.strip()
    try:
        return list(lexer)
    except ValueError:
        return command.strip()


def canonical_text(text: str) -> str:
    """Plain text without Markdown's dress, repeated blanks, closing punctuation, and the capital of a first plain word.

    Signs inside words stay: `__init__` and `2*3` are no emphasis. Text without a letter or digit is empty.
    """
    plain = " ".join(_EMPHASIS.sub(r"\2", _LINE_MARK.sub("", text)).split())
    plain = re.sub(r"(?<=\w)[.!]+$", "", plain) if any(letter.isalnum() for letter in plain) else ""
    first = plain.partition(" ")[0]
    return plain[0].lower() + plain[1:] if first.istitle() and first.isalpha() else plain
