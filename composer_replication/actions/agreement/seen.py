"""File contents known from a conversation: files read whole and not changed since."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from composer_replication.actions.agreement.calls import path_of
from composer_replication.actions.agreement.edits import may_be_one
from composer_replication.actions.agreement.intent import Aim, intent_of
from composer_replication.actions.calls import Call
from composer_replication.actions.tool_effects import EffectKind, ToolEffect, classify_call

_NUMBERED = re.compile(r" *([0-9]+)(?:→|\t)(.*)")
_CLIPPED = re.compile(r"\.\.\. [0-9]+ more lines")
_MOST_NUMBERED, _MOST_CHARS = 2000, 2000
"""Limits of Claude Code's `Read`: lines shown, and characters shown of each."""


def files_seen(messages: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Map each path as the agent wrote it to the file's text before the next action, where the messages leave no doubt about it.

    Understood are the answers of `read_file` and `write_file` of this framework and of Claude Code's `Read`. After a call that
    may have changed anything, such as an unknown command, nothing is known any more. A call is answered before the next message
    of the assistant: agents that number their calls from the start in every turn give many calls one id.
    """
    known: dict[str, str | None] = {}
    for place, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        in_text = not calls and message.get("role") == "assistant" and "```" in str(message.get("content"))
        if in_text or message.get("function_call"):
            known.clear()
        answers = _answers(calls, messages[place + 1 :])
        for wire in calls:
            call = _call(wire)
            if call is None:
                known.clear()
            else:
                _follow(call, answers.get(wire.get("id")), known)
    return known


def _answers(calls: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> dict[Any, Any]:
    """Return the results of one message's calls by id; nothing for calls that share an id or have two answers."""
    reply = takewhile(lambda message: message.get("role") != "assistant", after) if calls else ()
    given = [(m["tool_call_id"], m.get("content")) for m in reply if m.get("role") == "tool" and "tool_call_id" in m]
    asked, answered = Counter(wire.get("id") for wire in calls), Counter(name for name, _ in given)
    return {name: content for name, content in given if asked[name] == answered[name] == 1}


def _call(wire: Mapping[str, Any]) -> Call | None:
    function = wire.get("function", {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return Call(str(function.get("name", "")), arguments) if isinstance(arguments, Mapping) else None


def _follow(call: Call, answer: Any, known: dict[str, str | None]) -> None:
    effect, path = classify_call(call.name, call.arguments), path_of(call.arguments)
    if effect.kind is EffectKind.READ:
        text = _text(call.name, effect, answer)
        if text is not None:
            known[path] = text
    elif effect.kind in (EffectKind.EDIT, EffectKind.WRITE):
        for other in [name for name in known if may_be_one(name, path)]:
            del known[other]
        if call.name == "write_file" and answer == f"wrote {path}":
            known[path] = effect.content
    elif effect.kind not in (EffectKind.SEARCH, EffectKind.LIST, EffectKind.TEST, EffectKind.SUBMIT):
        intent = intent_of(call)
        if intent is None or intent.aim in (Aim.CHANGE, Aim.TEST):
            known.clear()


def _text(name: str, effect: ToolEffect, answer: Any) -> str | None:
    """Return the whole file that a READ shows; None when it shows a part, an error, or something that cannot be told from
    either."""
    if effect.lines is not None or not isinstance(answer, str):
        return None
    if name == "read_file":
        lines = answer.split("\n")
        failed = answer.startswith("no file ") and len(lines) == 1
        return None if failed or _CLIPPED.fullmatch(lines[-1]) else answer
    rows = [_NUMBERED.fullmatch(line) for line in answer.rstrip("\n").split("\n")]
    if name != "Read" or not rows or len(rows) >= _MOST_NUMBERED:
        return None
    shown = [
        row[2] for number, row in enumerate(rows, 1) if row is not None and int(row[1]) == number and len(row[2]) < _MOST_CHARS
    ]
    return "\n".join(shown) if len(shown) == len(rows) else None
