"""Who is asked: an OpenAI-compatible endpoint, a model on it, and what an answer may cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.errors import ConfigError
from composer_replication.types import Message, ToolSchema

__all__ = ["Question", "Teacher", "wire_messages"]

_HIDDEN_PROMPT_TOKENS = 512
"""Allowance for what endpoints add to a prompt by themselves, e.g. instructions on tool calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """An outside model that is asked and never trained.

    Raises:
        ConfigError: a number is out of range.
    """

    name: str
    """Shown in reports; unique in a pool."""
    model: str
    """The endpoint's model id."""
    base_url: str = "https://openrouter.ai/api/v1"
    api_key_env: str | None = "OPENROUTER_API_KEY"
    """Environment variable that holds the key; None for an endpoint without keys."""
    family: str = ""
    """Teachers of one family make correlated errors and count as one vote; empty for a family of its own."""
    usd_per_million_input: float | None = None
    """Price of prompt tokens; None when unknown. Calls are reserved at the price table and settled at the cost the endpoint
    reports, or at the price table when it reports none."""
    usd_per_million_output: float | None = None
    max_concurrency: int = 8
    temperature: float | None = 0.0
    """None leaves it to the endpoint."""
    max_tokens: int = 4096
    """Most completion tokens of one answer, reasoning included."""
    timeout_s: float = 120.0
    """Limit of one HTTP request. One that reaches it may be billed, so it counts towards the cap and is not sent again."""
    max_retries: int = 4
    """Retries of what costs nothing: rate limits, server errors and refused connections, after growing pauses."""

    def __post_init__(self) -> None:
        prices = (self.usd_per_million_input, self.usd_per_million_output)
        wrong = [
            field
            for field, bad in (
                ("name", not self.name),
                ("model", not self.model),
                ("usd_per_million_input", prices[0] is not None and prices[0] < 0),
                ("usd_per_million_output", prices[1] is not None and prices[1] < 0),
                ("max_concurrency", self.max_concurrency < 1),
                ("max_tokens", self.max_tokens < 1),
                ("timeout_s", self.timeout_s <= 0),
                ("max_retries", self.max_retries < 0),
            )
            if bad
        ]
        if wrong:
            raise ConfigError(f"teacher {self.name!r}: {wrong[0]} is out of range", fix=f"correct {wrong[0]} of this teacher")

    @property
    def vote_family(self) -> str:
        """The family under which its vote counts."""
        return self.family or self.name

    def price(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Price in USD of a call with these token counts; None when the price table has a gap."""
        if self.usd_per_million_input is None or self.usd_per_million_output is None:
            return None
        return (prompt_tokens * self.usd_per_million_input + completion_tokens * self.usd_per_million_output) / 1e6

    def most_expensive(self, question: Question) -> float | None:
        """Upper bound in USD on one answer; None when the price table has a gap.

        A tokenizer makes no more tokens than there are UTF-8 bytes, and `max_tokens` bounds the completion.
        """
        sent = json.dumps([wire_messages(question.messages), list(question.tools)], ensure_ascii=False)
        return self.price(len(sent.encode(errors="surrogatepass")) + _HIDDEN_PROMPT_TOKENS, self.max_tokens)

    def request(self, question: Question) -> dict[str, Any]:
        """Body of the chat-completions request."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": wire_messages(question.messages),
            "max_tokens": self.max_tokens,
        }
        if question.tools:
            body["tools"] = list(question.tools)
        if self.temperature is not None:
            body["temperature"] = self.temperature
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What every teacher of a pool is asked."""

    question_id: str
    messages: Sequence[Message | Mapping[str, Any]]
    tools: Sequence[ToolSchema] = ()
    sample: int = 0
    """Distinguishes repeated draws of the same question in the ledger."""


def wire_messages(messages: Sequence[Message | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as the OpenAI HTTP interface takes them: arguments as JSON text, every tool message answering a known call.

    The result of a call that could not be parsed answers nothing an endpoint knows; it becomes a user message after the turn's
    other results.
    """
    wire: list[dict[str, Any]] = []
    known: set[str] = set()
    orphans: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") in known:
                wire.append({"role": "tool", "tool_call_id": message["tool_call_id"], "content": message["content"]})
            else:
                orphans.append({"role": "user", "content": message["content"]})
            continue
        wire.extend(orphans)
        orphans = []
        plain = {"role": message["role"], "content": message["content"]}
        if message.get("tool_calls"):
            plain["tool_calls"] = [_wire_call(call) for call in message["tool_calls"]]
            known = {call["id"] for call in message["tool_calls"]}
        wire.append(plain)
    return wire + orphans


def _wire_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": text}}
