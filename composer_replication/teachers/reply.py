"""What an endpoint sent back, in one form: texts joined, arguments as JSON text, usage either whole or unknown.

Endpoints that call themselves compatible differ in small things. What is read here is kept in the ledger and read again by every
later run, so whatever has another shape is refused before anything is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt, ValidationError

from composer_replication.actions import too_deep
from composer_replication.tokens.tool_calls import load_json
from composer_replication.types import ToolCall

__all__ = ["Reply", "Usage", "parse_call", "read_reply"]


class Usage(BaseModel):
    """What a call took, as the endpoint counts."""

    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt
    cost: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    """In USD, where it is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The first choice of a chat completion."""

    content: str
    calls: Sequence[dict[str, str]]
    """`{"id", "name", "arguments"}`, each a text that may be empty; see `parse_call`."""
    finish_reason: str
    usage: Usage | None
    """None when the endpoint reports none, or not all of it, or nonsense."""


def read_reply(body: bytes) -> Reply:
    """Read a response's body. Raises ValueError when it is no chat completion."""
    completion = _Completion.model_validate_json(body)
    choice = completion.choices[0]
    functions = [(c.id, c.function) for c in choice.message.tool_calls or [] if c.type == "function"]
    if any(function is None for _, function in functions):
        raise ValueError("a tool call without its function")
    return Reply(
        content=_joined(choice.message.content),
        calls=[{"id": i or "", "name": f.name or "", "arguments": f.arguments or ""} for i, f in functions if f is not None],
        finish_reason=choice.finish_reason or "",
        usage=_usage(completion.usage),
    )


def parse_call(call_id: str, name: str, arguments: str) -> ToolCall:
    """One call of a `Reply`, read as strictly as the policy's own. What cannot be carried out has an `error`."""
    try:
        parsed = load_json(arguments or "{}")
    except (ValueError, TypeError) as error:
        return ToolCall(call_id=call_id, name=name, arguments={}, error=str(error))
    if not isinstance(parsed, dict) or not name or too_deep(parsed):
        problem = "a call needs a name and an object of arguments that is not nested too deeply"
        return ToolCall(call_id=call_id, name=name, arguments={}, error=problem)
    return ToolCall(call_id=call_id, name=name, arguments=parsed)


def _as_text(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


class _Function(BaseModel):
    name: str | None = None
    arguments: Annotated[str, BeforeValidator(_as_text)] | None = None


class _Call(BaseModel):
    id: str | None = None
    type: str = "function"
    function: _Function | None = None


class _Part(BaseModel):
    type: str = "text"
    text: str | None = None


class _Message(BaseModel):
    content: str | list[_Part | str] | None = None
    tool_calls: list[_Call] | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


def _joined(content: str | Sequence[_Part | str] | None) -> str:
    """Content as one text; parts that are none, such as a model's thoughts, are left out."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part if isinstance(part, str) else part.text for part in content if isinstance(part, str) or part.type == "text"]
    return "".join(text or "" for text in texts)


def _usage(reported: Any) -> Usage | None:
    try:
        return Usage.model_validate(reported)
    except ValidationError:
        return None
