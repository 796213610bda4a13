"""An agent's action as text, and as a canonical form in which equal actions are equal strings.

An action is either tool calls or, without one, a final text. As text (`render_action`) a tool call is one line of JSON,
`{"name": ..., "arguments": {...}}`, for every agent: student and teachers are compared, and later trained on, in one format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.actions.shell_words import NotUnderstoodError, Word, read_line
from composer_replication.actions.tool_effects import EffectKind, classify_call, plain_path
from composer_replication.types import Message

MAX_NESTING = 64
"""Lists and objects that a call's arguments may have inside one another: what walks over them recurses, and stacks end."""

_PATH_ARGUMENTS = frozenset({"path", "file", "filename", "file_path", "dir", "directory", "folder", "cwd"})
_SHELL_ARGUMENTS = frozenset({"command", "cmd"})
_EMPHASIS = re.compile(r"(?<![\w*`])(\*\*|`)(?=\S)([^*`\n]*?\w)\1(?![\w*`])")
_CODE = re.compile(r"```|~~~|\n(?:  +|\t)\S")
_END = re.compile(r"(?:(?<=\w)\.+|(?<=[^\W\d_]{2})!+)$")
_FENCES = ("```", "~~~")
_SHELL_TAGS = frozenset({"", "bash", "sh", "shell", "mswea_bash_command"})


@dataclass(frozen=True, slots=True)
class Call:
    """A well-formed tool call."""

    name: str
    arguments: Mapping[str, Any]


def too_deep(value: Any) -> bool:
    """Return whether JSON data, such as a call's arguments, nests deeper than `MAX_NESTING`, itself included. Does not
    recurse."""
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
    """Render the action as text: one JSON line per call, or `content` when there is none. Prose beside a call is left out."""
    if not calls:
        return content.strip()
    return "\n".join(json.dumps({"name": c.name, "arguments": dict(c.arguments)}, ensure_ascii=False) for c in calls)


def parse_action(text: str) -> tuple[str, tuple[Call, ...]]:
    """Invert `render_action`: `(content, calls)`, one of which is empty. Anything that is not all tool calls is content."""
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


def command_in(text: str) -> tuple[str, str] | None:
    """Return the tag and the command of a text whose only fenced block is a shell command, as agents without tools write them.

    None for any other text: with several blocks, or with fences inside one, agents differ in what they run.
    """
    lines = text.split("\n")
    fences = [i for i, line in enumerate(lines) if any(fence in line for fence in _FENCES)]
    if len(fences) != 2:
        return None
    first, last = fences
    tag = lines[first].removeprefix("```").strip()
    command = "\n".join(lines[first + 1 : last])
    plain = lines[first].startswith("```") and lines[last].rstrip() == "```" and tag in _SHELL_TAGS
    return (tag, command) if plain and command.strip() else None


def action_message(text: str, *, turn: int = 0) -> Message:
    """Parse an action's text into an assistant message; its calls are named `call_{turn}_{i}`."""
    content, calls = parse_action(text)
    if not calls:
        return Message(role="assistant", content=content)
    wire = [
        {"id": f"call_{turn}_{i}", "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
        for i, c in enumerate(calls)
    ]
    return Message(role="assistant", content="", tool_calls=wire)


def canonical_action(content: str, calls: Sequence[Call]) -> str:
    """Return a string that is equal for equal actions: the canonical calls in order, or the canonical text."""
    if calls:
        return "\n".join(canonical_call(c.name, c.arguments) for c in calls)
    return canonical_text(content)


def canonical_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the call with sorted keys. For a tool that `tool_effects` knows, null arguments are dropped, as are `./` and doubled
    slashes of paths, and blanks, comments and quotes of a shell command are unified: a word that the shell expands stays distinct
    from one that it does not.

    Order of shell words is kept, so `pytest -q tests` and `pytest tests -q` differ: only what is certainly equal is equal.
    """
    kind = classify_call(name, arguments).kind
    clean = arguments if kind is EffectKind.OTHER else _canonical_object(arguments, shell=kind is EffectKind.SHELL)
    return json.dumps([name, dict(clean)], sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _canonical_object(arguments: Mapping[str, Any], *, shell: bool) -> dict[str, Any]:
    clean: dict[str, Any] = {}
    for key, value in arguments.items():
        if isinstance(value, str) and key in _PATH_ARGUMENTS:
            clean[key] = plain_path(value)
        elif isinstance(value, str) and shell and key in _SHELL_ARGUMENTS:
            clean[key] = _shell_words(value)
        elif isinstance(value, Mapping):
            clean[key] = _canonical_object(value, shell=shell)
        elif value is not None:
            clean[key] = value
    return clean


def _shell_words(command: str) -> Any:
    """Return the simple commands of a line; the line itself, without surrounding line breaks, where it is not understood."""
    try:
        line = read_line(command)
    except NotUnderstoodError:
        return command if command.rstrip("\n").endswith("\\") else command.strip("\n")
    return [
        [
            simple.joint,
            [*map(_canonical_word, simple.assignments)],
            [*map(_canonical_word, simple.words)],
            [[r.descriptor, r.operator, _canonical_word(r.target)] for r in simple.redirects],
        ]
        for simple in line
    ]


def _canonical_word(word: Word) -> Any:
    return {"expands": word.source} if word.expands else word.text


def canonical_text(text: str) -> str:
    """Return plain text without emphasis, repeated blanks, closing punctuation, and the capital of a first plain word.

    Signs inside words stay: `__init__` and `2*3` are not emphasis, `5!` is a number. Text without a letter or digit is empty. A
    text with a fenced or an indented line in it stays as it is: blanks mean something in code.
    """
    if not any(letter.isalnum() for letter in text):
        return ""
    if _CODE.search(text):
        return text
    plain = _END.sub("", " ".join(_EMPHASIS.sub(r"\2", text).split()))
    first = plain.partition(" ")[0]
    return plain[0].lower() + plain[1:] if first.istitle() and first.isalpha() else plain
