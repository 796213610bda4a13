"""Parsing of a turn's text into tool calls, in the Hermes markup that Qwen2.5, Qwen3 and the embedded model write."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from composer_replication.actions.calls import too_deep
from composer_replication.types import Message, ToolCall

CALL_START, CALL_END = "<tool_call>", "</tool_call>"
_TOO_DEEP = "bad JSON: nested too deeply"
_BLOCK = re.compile(re.escape(CALL_START) + "(.*?)(?:(" + re.escape(CALL_END) + r")|(?=<tool_call>)|\Z)", re.DOTALL)


def parse_tool_calls(text: str, *, turn: int) -> tuple[str, tuple[ToolCall, ...]]:
    """Split a turn's text into `(content, calls)`.

    Every `<tool_call>` opens one call, well formed or not: what cannot be understood is a `ToolCall` whose `error` says why and
    never an exception, whatever the text. `content` is the text outside the markup, stripped. Call ids are `call_{turn}_{i}`.
    """
    calls = tuple(
        _parse_call(f"call_{turn}_{i}", match[1], closed=match[2] is not None) for i, match in enumerate(_BLOCK.finditer(text))
    )
    return _BLOCK.sub("", text).strip(), calls


def assistant_message(content: str, calls: tuple[ToolCall, ...]) -> Message:
    """Return the turn in the OpenAI form that teachers and templates read. Calls that could not be parsed are left out."""
    wire = [
        {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
        for c in calls
        if c.error is None
    ]
    return Message(role="assistant", content=content, tool_calls=wire) if wire else Message(role="assistant", content=content)


def _parse_call(call_id: str, body: str, *, closed: bool) -> ToolCall:
    try:
        name, arguments = _read_call(body, closed=closed)
    except ValueError as error:
        return ToolCall(call_id=call_id, name="", arguments={}, error=str(error))
    return ToolCall(call_id=call_id, name=name, arguments=arguments)


def _read_call(body: str, *, closed: bool) -> tuple[str, Mapping[str, Any]]:
    """Name and arguments of one call. Raises ValueError with a sentence for the agent."""
    if not closed:
        raise ValueError(f"{CALL_END} is missing")
    call = load_json(body)
    if not isinstance(call, dict):
        raise ValueError("not a JSON object")
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ValueError('"name" is missing')
    if isinstance(arguments, str):
        arguments = load_json(arguments)
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" is not an object')
    if too_deep(arguments):
        raise ValueError(_TOO_DEEP)
    return name, arguments


def load_json(text: str) -> Any:
    """Parse strict JSON whose strings can be written as UTF-8. Raises ValueError, also for what is beyond Python's limits."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        _check_utf8(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"bad JSON: {error.msg} at {error.pos}") from error
    except UnicodeEncodeError as error:
        raise ValueError("bad JSON: half a surrogate pair") from error
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    return value


def _check_utf8(value: Any) -> None:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:  # 1e999 is read as infinity, which no JSON can hold
        raise ValueError("bad JSON: a number beyond a float's range") from error
    text.encode()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"bad JSON: {name} is not a number")
