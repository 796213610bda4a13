"""Teachers: an OpenAI-compatible endpoint, a model on it, and what an answer may cost."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from composer_replication.config import TeacherConfig
from composer_replication.types import Message, ToolSchema
from composer_replication.types.errors import ConfigError
from composer_replication.types.wire import call_to_wire

_HIDDEN_PROMPT_TOKENS = 512
"""Allowance for what endpoints add to a prompt by themselves, e.g. instructions on tool calls."""


_OURS = frozenset(
    {"model", "messages", "tools", "max_tokens", "max_completion_tokens", "temperature", "stream", "n", "extra_body"}
)
"""Fields of a request that `Teacher.extra_body` may not set: the framework does, or the price table could not bound the cost."""


class Teacher(TeacherConfig):
    """An external model that is asked and never trained.

    Its fields are those of a run file's teacher. Calls are reserved at the price table and settled at the cost the endpoint
    reports, or at the price table when it reports none.

    Raises:
        ConfigError: a number is out of range, or `base_url` is not an HTTP address.
    """

    def __init__(self, **fields: Any) -> None:
        name = fields.get("name")
        try:
            super().__init__(**fields)
        except ValidationError as error:
            wrong = ".".join(map(str, error.errors()[0]["loc"][:1]))
            raise ConfigError(f"teacher {name!r}: {wrong} is out of range", fix=f"correct {wrong} of this teacher") from error
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"teacher {name!r}: base_url is {self.base_url!r}", fix="begin base_url with http:// or https://")
        if taken := sorted(_OURS & self.extra_body.keys()):
            raise ConfigError(f"teacher {name!r}: extra_body sets {taken[0]}", fix=f"remove {taken[0]} from extra_body")

    @classmethod
    def of(cls, config: TeacherConfig) -> Self:
        """Make the teacher that a run file or a file of teachers describes."""
        return cls(**config.model_dump())

    @property
    def vote_family(self) -> str:
        """The family under which its vote counts."""
        return self.family or self.name

    def as_judge(self) -> Self:
        """Return it under another name, as what a verdict costs says nothing of what its other answers will cost."""
        return self.model_copy(update={"name": f"{self.name} (judge)"})

    def key(self) -> str:
        """Return the key of its endpoint, from the environment; an empty string where it needs none.

        Raises:
            ConfigError: the environment variable is not set.
        """
        key = os.environ.get(self.api_key_env or "", "")
        if self.api_key_env and not key:
            raise ConfigError(
                f"teacher {self.name!r} needs a key and {self.api_key_env} is not set",
                fix=f"export {self.api_key_env}=..., or set its api_key_env to an empty string for an endpoint without keys",
            )
        return key

    def price(self, prompt_tokens: int, completion_tokens: int, *, cached: int = 0, written: int = 0) -> float | None:
        """Return the price in USD of a call with these token counts; None when the price table has a gap.

        Args:
            cached: how many of the prompt tokens were read from the endpoint's cache.
            written: how many others of them were put into it.
        """
        fresh, completion = self.usd_per_million_input, self.usd_per_million_output
        if fresh is None or completion is None:
            return None
        read = fresh if self.usd_per_million_cache_read is None else self.usd_per_million_cache_read
        write = fresh if self.usd_per_million_cache_write is None else self.usd_per_million_cache_write
        prompt = (prompt_tokens - cached - written) * fresh + cached * read + written * write
        return (prompt + completion_tokens * completion) / 1e6

    def most_expensive(self, question: Question) -> float | None:
        """Return the upper bound in USD on one answer; None when the price table has a gap.

        A tokenizer makes no more tokens than there are UTF-8 bytes, none is dearer than one that is written to a cache or not in
        it, and `max_tokens` bounds the completion.
        """
        return self.bound_usd(prompt_bytes(question.messages, question.tools))

    def bound_usd(self, sent_bytes: int) -> float | None:
        """Return `most_expensive` of a question whose prompt has that many `prompt_bytes`."""
        most = sent_bytes + _HIDDEN_PROMPT_TOKENS
        bounds = [
            self.price(most, self.max_tokens, cached=cached, written=written)
            for cached, written in ((0, 0), (most, 0), (0, most))
        ]
        return max((bound for bound in bounds if bound is not None), default=None)

    def request(self, question: Question) -> dict[str, Any]:
        """Return what an answer depends on: the body of the chat-completions request, without marks for a cache."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": wire_messages(question.messages),
            self.limit_field: self.max_tokens,
        }
        if question.tools:
            body["tools"] = list(question.tools)
        if self.temperature != "endpoint":
            body["temperature"] = self.temperature
        return body | self.extra_body

    def arguments(self, question: Question) -> dict[str, Any]:
        """Return what the client's method for chat completions is called with: `request`, marked for a cache where the teacher
        wants that."""
        request = self.request(question)
        own = {name: value for name, value in request.items() if name not in self.extra_body}
        if self.mark_cache:
            own["messages"] = _marked(own["messages"])
        return own | ({"extra_body": self.extra_body} if self.extra_body else {})


def _marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with a mark on the system prompt and on the last message: the next step of a trace begins with all of
    these.

    An assistant's message cannot carry one beside its calls, and an empty text cannot carry one at all.
    """
    places = [i for i, m in enumerate(messages) if m["role"] != "assistant" and m["content"]]
    last = places[-1:]
    first = [i for i in places[:1] if messages[i]["role"] == "system"]
    marked = list(messages)
    for i in {*first, *last}:
        part = {"type": "text", "text": messages[i]["content"], "cache_control": {"type": "ephemeral"}}
        marked[i] = messages[i] | {"content": [part]}
    return marked


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to every teacher of a pool."""

    question_id: str
    messages: Sequence[Message | Mapping[str, Any]]
    tools: Sequence[ToolSchema] = ()
    sample: int = 0
    """Distinguishes repeated draws of the same question in the ledger."""
    trace: str = ""
    """Questions about one trace are asked of a teacher one after the other, so that each finds the previous prompt in the
    endpoint's cache. Empty for a question that belongs to no trace."""
    step: int = 0
    """Place in the trace."""


def prompt_bytes(messages: Sequence[Message | Mapping[str, Any]], tools: Sequence[ToolSchema]) -> int:
    """Return UTF-8 bytes of messages and tools as they are sent."""
    return len(json.dumps([wire_messages(messages), list(tools)], ensure_ascii=False).encode(errors="surrogatepass"))


def wire_messages(messages: Sequence[Message | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages as the OpenAI HTTP interface takes them: arguments as JSON text, every tool message answering a known
    call.

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
            plain["tool_calls"] = [call_to_wire(call) for call in message["tool_calls"]]
            known = {call["id"] for call in message["tool_calls"]}
        wire.append(plain)
    return wire + orphans
