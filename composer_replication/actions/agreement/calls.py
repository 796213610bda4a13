"""Equality of tool calls, judged by their text: names and defaults of arguments, paths, shell words.

Tools of several agents that do one thing are one tool here (`actions.tool_effects`), as far as their arguments say nothing
that the effect does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

from composer_replication.actions.agreement.shell import shell_form
from composer_replication.actions.calls import Call
from composer_replication.actions.shell_words import NotUnderstoodError
from composer_replication.actions.tool_effects import EffectKind, ToolEffect, classify_call, plain_path
from composer_replication.types import ToolSchema

_SAYS_NOTHING = frozenset({"description", "explanation", "thought", "security_risk"})
"""Arguments in which a model explains a call of a tool known to `tool_effects`; a submission's arguments are exempt."""
_SPELLINGS = (
    frozenset({"path", "file_path", "filename", "dir", "directory"}),
    frozenset({"old", "old_string", "old_str"}),
    frozenset({"new", "new_string", "new_str", "insert_text"}),
    frozenset({"content", "file_text"}),
    frozenset({"patch", "input"}),
    frozenset({"pattern", "query", "search_term"}),
)
"""Names of one argument; a call that has two of them is not understood."""
_PATH, _OLD, _NEW, _CONTENT, _PATCH, _PATTERN = _SPELLINGS
_WHOLE: Mapping[EffectKind, frozenset[str]] = {
    EffectKind.READ: _PATH | {"start", "end", "view_range", "command"},
    EffectKind.LIST: _PATH,
    EffectKind.SEARCH: _PATH | _PATTERN,
    EffectKind.EDIT: _PATH | _OLD | _NEW | {"replace_all", "edits", "insert_line", "command"},
    EffectKind.WRITE: _PATH | _CONTENT | {"command"},
    EffectKind.PATCH: _PATCH,
    EffectKind.TEST: frozenset(),
    EffectKind.SUBMIT: frozenset(),
}
"""Per kind, the arguments its effect represents completely. A call with any other argument is compared by the tool's name and
arguments."""
_COMMAND, _CWD = frozenset({"command", "cmd", "action"}), frozenset({"workdir", "cwd"})
_NORMALISES = frozenset({"list_files", "search"})
"""Tools that look for files and show their paths in one way, however the folder is written."""


def call_form(call: Call, tools: Sequence[ToolSchema] = (), folders: Container[str] = ()) -> tuple[Any, ...] | None:
    """Return the call's form, equal for calls that do the same; None for a shell command that is not understood.

    Args:
        tools: schemas that tell which arguments are required, and what are defaults. Beside these, null and reasons say nothing,
            where `tool_effects` knows the tool.
        folders: see `shell_form`.
    """
    arguments = _given(call, tools)
    effect = classify_call(call.name, arguments)
    if effect.kind is EffectKind.SHELL:
        try:
            form = shell_form(effect.command, () if effect.cwd else folders)
        except NotUnderstoodError:
            return None
        if any(len(names & arguments.keys()) > 1 for names in (_COMMAND, _CWD)):
            return None
        beside = {k: v for k, v in arguments.items() if k not in _COMMAND | _CWD}
        own = _json([call.name, beside]) if beside else ""
        return ("shell", own, _shell_of(arguments), plain_path(effect.cwd), form)
    plain = arguments.keys() <= _WHOLE.get(effect.kind, frozenset()) and not any(
        len(s & arguments.keys()) > 1 for s in _SPELLINGS
    )
    if plain and effect.kind is not EffectKind.OTHER:
        return _deed_form(call.name, effect, arguments)
    return ("call", call.name, _json(arguments))


def _shell_of(arguments: Mapping[str, Any]) -> str:
    """Return which shell reads a command that is given as words; nothing for one text, and for what Codex writes for that."""
    given: Any = next(arguments[name] for name in sorted(_COMMAND) if name in arguments)
    given = given["command"] if isinstance(given, Mapping) else given
    if isinstance(given, str) or list(given[:2]) == ["bash", "-lc"]:
        return ""
    wrapped = len(given) == 3 and str(given[1]) in ("-c", "-lc")
    return " ".join(map(str, given[:2])) if wrapped else "none"


def path_of(arguments: Mapping[str, Any]) -> str:
    """Return the path that a call names, with `..` and closing slash as given (the effect's is normalized); empty for none, and
    for `.`."""
    given = next((arguments[name] for name in sorted(_PATH) if arguments.get(name) is not None), "")
    path = plain_path(given) if isinstance(given, str) else ""
    return "" if path in (".", "./") else path


def _given(call: Call, tools: Sequence[ToolSchema]) -> dict[str, Any]:
    """Return the arguments that carry meaning."""
    schema: Mapping[str, Any] = next(
        (t["function"].get("parameters", {}) for t in tools if t["function"]["name"] == call.name), {}
    )
    properties, required = schema.get("properties", {}), schema.get("required", ())
    kind = classify_call(call.name, call.arguments).kind

    def is_nothing(name: str, value: Any) -> bool:
        if name in required or kind is EffectKind.OTHER:
            return False
        return value is None or (name in _SAYS_NOTHING and kind is not EffectKind.SUBMIT)

    return {
        name: value
        for name, value in call.arguments.items()
        if not is_nothing(name, value) and not _is_default(properties.get(name), value)
    }


def _is_default(declared: Any, value: Any) -> bool:
    return isinstance(declared, Mapping) and "default" in declared and same_json(declared["default"], value)


def _deed_form(name: str, effect: ToolEffect, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the form of a call by its effect. Tools that show the same differently, or refuse in other cases, keep their
    names."""
    own = name if effect.kind in (EffectKind.LIST, EffectKind.SEARCH) or "command" in arguments else ""
    path = path_of(arguments)
    if name in _NORMALISES:
        path = path.rstrip("/") or path
    elif own and not effect.changes:
        path = str(next((arguments[given] for given in sorted(_PATH) if given in arguments), ""))
    first, last = effect.lines or (None, None)
    lines = (1 if first is None else first, last)
    return (effect.kind.value, own, path, effect.pattern, lines, effect.replacements, effect.insert_after, effect.content)


def same_json(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON data: 1, 1.0 and True are three different values."""
    return _json(one) == _json(other)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
