"""Calls that could not be carried out at all: no such tool, unreadable, of the wrong shape, or not made where one is due."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, UnknownType, ValidationError, best_match
from referencing.exceptions import Unresolvable

from composer_replication.actions.calls import too_deep
from composer_replication.actions.tool_effects import EffectKind, classify_call
from composer_replication.hints.detectors.declared import detector
from composer_replication.hints.detectors.failure import STATUSES
from composer_replication.hints.detectors.reading import Reading
from composer_replication.types import Finding, StopReason, ToolSchema


@detector("unknown_tool")
def unknown_tool(work: Reading) -> Iterator[Finding]:
    """Find calls of a tool that the agent does not have."""
    for step in work.steps:
        call = step.call
        missing = bool(work.tool_names) and call is not None and call.error is None and call.name not in work.tool_names
        refused = step.refusal == "unknown_tool"
        # a call that was carried out, or refused for another reason, is of a tool missing from the log's list
        if refused or (missing and (step.result is None or step.refusal not in (None, *STATUSES - {"command_failed"}))):
            yield step.finding("unknown_tool")


@detector("malformed_call")
def malformed_call(work: Reading) -> Iterator[Finding]:
    """Find calls that could not be read: bad JSON, no name, a mark missing."""
    for step in work.steps:
        # one without a result was cut off by a budget, not rejected
        unread = step.result is not None and step.call is not None and step.call.error is not None
        if step.refusal == "malformed_call" or (unread and step.refusal is None):
            yield step.finding("malformed_call")


@detector("cut_off")
def cut_off(work: Reading) -> Iterator[Finding]:
    """Find a turn that a budget of tokens ended: in the middle of a call, which could not be read and which nothing answered, or
    before there was one."""
    for step in work.steps:
        if step.result is None and step.call is not None and step.call.error is not None:
            yield step.finding("cut_off")
    if work.cut_turn is not None:
        yield Finding(kind="cut_off", turn=work.cut_turn, evidence={"text": work.turns[work.cut_turn].text[-400:]})


@detector("invalid_arguments")
def invalid_arguments(work: Reading) -> Iterator[Finding]:
    """Find arguments that do not fit the tool's schema, by the environment's word or by the schema itself."""
    schemas = dict(_parameters(work.tools))
    for step in work.steps:
        call = step.call
        problem = None
        if call is not None and call.error is None and call.name in schemas:
            refused = step.result is None or step.refusal is not None
            # a call that was carried out is not wrong, however strict the schema
            problem = _problem(schemas[call.name], call.arguments) if refused else None
        if step.refusal == "invalid_arguments":
            yield step.finding("invalid_arguments", {} if problem is None else {"problem": problem})
        elif problem is not None and step.refusal in (None, "command_failed"):
            yield step.finding("invalid_arguments", {"problem": problem})


def _parameters(tools: tuple[ToolSchema, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        parameters = function.get("parameters") if isinstance(function, dict) else None
        if isinstance(function, dict) and isinstance(parameters, dict):
            yield str(function.get("name", "")), parameters


def _problem(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """Return why the arguments do not fit, in one line; None when they do, or the schema itself is not a schema."""
    if too_deep(dict(arguments)) or too_deep(dict(parameters)):
        return None
    validator = _validator(json.dumps(parameters, default=str))
    if validator is None:
        return None
    try:
        error: ValidationError | None = best_match(validator.iter_errors(dict(arguments)))
    except (UnknownType, Unresolvable, RecursionError, re.error, TypeError):
        return None
    return None if error is None else f"{error.json_path[2:]}: {error.message}"[:200] if error.path else error.message[:200]


@lru_cache(maxsize=256)
def _validator(parameters: str) -> Draft202012Validator | None:
    """Return the validator of a JSON schema; None when the text is not a schema."""
    schema = json.loads(parameters)
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError, re.error):
        return None
    return Draft202012Validator(schema)


_MARKUP = re.compile(
    r"<tool_call>|<function_calls>|<function=[\w-]+>|<invoke name=|<\|tool_call(?:s_begin|_begin)?\|>|\[TOOL_CALLS\]|<tool_use>"
)
_FENCED_CALL = re.compile(
    r'```(?:json)?\s*\{\s*"(?:name|tool|function)"\s*:\s*"([\w.-]+)"\s*,\s*"(?:arguments|parameters|input|args)"'
)
_CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]*`", re.DOTALL)


@detector("malformed_markup")
def malformed_markup(work: Reading) -> Iterator[Finding]:
    """Find a turn without any call whose text has the marks of one: the agent's parser does not know that way of writing it."""
    for index, turn in enumerate(work.turns):
        if turn.tool_calls or ("<" not in turn.text and "[TOOL" not in turn.text and "```" not in turn.text):
            continue
        fenced = _FENCED_CALL.search(turn.text)
        if fenced is not None and fenced[1] in work.tool_names:
            yield Finding(kind="malformed_markup", turn=index, span=fenced.span(), evidence={"tool": fenced[1]})
            continue
        found = _MARKUP.search(_CODE.sub(lambda code: " " * len(code[0]), turn.text))
        if found is not None:
            yield Finding(kind="malformed_markup", turn=index, span=found.span(), evidence={"mark": found[0]})


_ANNOUNCED = re.compile(
    r"(?:^|[.!?:]\s+|\n)\s*(?:(?:now|next|first|then|okay|ok|so|great)[,.]?\s+)?"
    r"(?:let me|let's|i'll|i will|i'm going to|i am going to)(?: now| first| also| then| next)?\s+"
    r"(?:run|check|look|read|open|view|edit|fix|update|search|create|write|add|implement|modify|examine|inspect|apply|explore|test"
    r"|verify|start by|list|install|try|find|change|replace)\b[^?\n]*$",
    re.IGNORECASE,
)


@lru_cache(maxsize=1024)
def _hands_in(tool: str) -> bool:
    return classify_call(tool, {}).kind is EffectKind.SUBMIT


@detector("no_tool_call")
def no_tool_call(work: Reading) -> Iterator[Finding]:
    """Find a turn without a call where one is due.

    That is: the agent has a tool to end its work with, or its last sentence says what it is about to do. A turn without any text
    counts where it is known to have ended the work: in logs it may be one of thoughts that they leave out.
    """
    ends_by_call = any(map(_hands_in, work.tool_names))
    submitted = False
    for index, turn in enumerate(work.turns):
        if turn.tool_calls:
            submitted = submitted or any(_hands_in(call.name) for call in turn.tool_calls)
            continue
        mute = not turn.text.strip() and not (index + 1 == len(work.turns) and work.stop_reason is StopReason.NO_TOOL_CALL)
        if turn.results or submitted or mute or index == work.cut_turn:
            continue
        announced = _ANNOUNCED.search(turn.text.rstrip()[-400:])
        if ends_by_call or announced:
            yield Finding(
                kind="no_tool_call", turn=index, confidence=1.0 if ends_by_call else 0.9, evidence={"text": turn.text[-400:]}
            )
