"""An endpoint's reply in one form: texts joined, arguments as JSON text, usage either whole or unknown, and its price.

Endpoints that call themselves compatible differ in small things. What is read here is kept in the ledger and read again by every
later run, so whatever has another shape is refused before anything is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt, ValidationError, model_validator

from composer_replication.teachers.teacher import Question, Teacher

_Usd = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class _PromptDetails(BaseModel):
    cached_tokens: NonNegativeInt | None = None
    cache_write_tokens: NonNegativeInt | None = None


class _CostDetails(BaseModel):
    upstream_inference_cost: _Usd | None = None


class Usage(BaseModel):
    """Token usage of a call, as the endpoint counts it."""

    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt
    prompt_tokens_details: _PromptDetails | None = None
    cost: _Usd | None = None
    """Cost in USD, where it is reported."""
    is_byok: bool | None = None
    """OpenRouter's term for the user's own key at the provider, who then bills `cost_details.upstream_inference_cost` in
    addition."""
    cost_details: _CostDetails | None = None

    @model_validator(mode="after")
    def _cached_are_prompt_tokens(self) -> Self:
        if self.cached_tokens + self.written_tokens > self.prompt_tokens:
            raise ValueError("more tokens of the cache than of the prompt")
        return self

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens read from the endpoint's cache."""
        return (self.prompt_tokens_details.cached_tokens or 0) if self.prompt_tokens_details else 0

    @property
    def written_tokens(self) -> int:
        """Prompt tokens put into it."""
        return (self.prompt_tokens_details.cache_write_tokens or 0) if self.prompt_tokens_details else 0

    @property
    def reported_usd(self) -> float | None:
        """The cost of the call that the endpoint reports; None when it reports none."""
        upstream = self.cost_details.upstream_inference_cost if self.is_byok and self.cost_details else None
        return None if self.cost is None else self.cost + (upstream or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The first choice of a chat completion."""

    content: str
    calls: Sequence[dict[str, str]]
    """`{"id", "name", "arguments"}`, each a text that may be empty; `traces.recorder.native_call` reads it."""
    finish_reason: str
    usage: Usage | None
    """None when the endpoint reports none, or not all of it, or nonsense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price at which a call is booked."""

    usd: float
    doubt: str = ""
    """Why that may not be what is billed; empty when it is known."""
    above: bool = False
    """The reply names more than the call can cost by the price table."""


def price_of(usage: Usage | None, teacher: Teacher, question: Question, *, cap_usd: float | None) -> Price:
    """Return the cost the endpoint reports, else what its token counts cost by the price table.

    A cost of zero from a teacher with prices counts as none reported. Where there is no usage that makes sense, it is the most
    the call can cost. An amount above that is booked as reported, as the table may be wrong and the report what is billed; but
    one above `cap_usd`, or where there is no cap to keep, is nonsense, and the most the call can cost is booked.
    """
    most = teacher.most_expensive(question)
    if usage is None:
        return Price(usd=most, doubt="the reply has no usage, or one that makes no sense") if most else Price(usd=0.0)
    written = usage.written_tokens
    tokens = teacher.price(usage.prompt_tokens, usage.completion_tokens, cached=usage.cached_tokens, written=written)
    usd = usage.reported_usd or tokens or 0.0
    if most is not None and usd > most * (1 + 1e-9):
        believed = cap_usd is not None and usd <= cap_usd
        doubt = f"it reports ${usd:.6g} for a call that costs at most ${most:.6g}"
        return Price(usd=usd if believed else most, doubt=doubt, above=True)
    return Price(usd=usd)


def read_reply(body: bytes) -> Reply:
    """Read a response's body. Raises ValueError when it is not a chat completion."""
    completion = _Completion.model_validate_json(body)
    choice = completion.choices[0]
    if choice.finish_reason == "error":  # OpenRouter's when the provider failed half-way
        raise ValueError("the answer broke off")
    functions = [(c.id, c.function) for c in choice.message.tool_calls or [] if c.type == "function"]
    if any(function is None for _, function in functions):
        raise ValueError("a tool call without its function")
    return Reply(
        content=_joined(choice.message.content),
        calls=[{"id": i or "", "name": f.name or "", "arguments": f.arguments or ""} for i, f in functions if f is not None],
        finish_reason=choice.finish_reason or "",
        usage=_usage(completion.usage),
    )


def _as_text(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


class _ReplyFunction(BaseModel):
    name: str | None = None
    arguments: Annotated[str, BeforeValidator(_as_text)] | None = None


class _ReplyCall(BaseModel):
    id: str | None = None
    type: str = "function"
    function: _ReplyFunction | None = None


class _ReplyPart(BaseModel):
    type: str = "text"
    text: str | None = None


class _ReplyMessage(BaseModel):
    content: str | list[_ReplyPart | str] | None = None
    tool_calls: list[_ReplyCall] | None = None


class _Choice(BaseModel):
    message: _ReplyMessage
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


def _joined(content: str | Sequence[_ReplyPart | str] | None) -> str:
    """Join content into one text; parts that are none, such as a model's thoughts, are left out."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part if isinstance(part, str) else part.text for part in content if isinstance(part, str) or part.type == "text"]
    return "".join(text or "" for text in texts)


def _usage(reported: Any) -> Usage | None:
    try:
        return Usage.model_validate(reported)
    except ValidationError:
        return None
