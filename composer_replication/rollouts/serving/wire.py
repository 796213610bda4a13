"""The requests an engine makes of any server, and checks that its answers fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from composer_replication.rollouts.serving.http import Http, RefusedError
from composer_replication.types.errors import ModelError

_CLAMPED = -9999.0
"""The value vLLM sends for minus infinity and for NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Continue one context."""

    ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int
    stop_ids: tuple[int, ...]
    top: int = 0
    """Number of most likely tokens to return, with their log-probs, for the first position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Sampled tokens from the server."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool
    """True when the server says that a token ended it, False when the length did."""
    weights: str | None
    """The label of the weights that sampled it, where the server says so in each answer."""
    top: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A server's description of itself."""

    window: int
    """Most positions of one sequence that can be sampled in full."""
    notes: Sequence[str] = ()
    """Notes on its samples that are not errors."""


class Server(Protocol):
    """A kind of server at one address. Every method raises ModelError; what it names is the address and the fix."""

    http: Http
    processed_fix: str
    """How to make the server return log-probs of the distribution it samples from."""
    proof_note: str
    """Known reasons for it to keep old weights after a load, as the end of a sentence."""

    async def facts(self) -> Facts:
        """Return the server's facts. Also raises when another kind of server, or none, is at the address."""
        ...

    async def require_loading(self, *, adapter: bool) -> None:
        """Raise when weights, or adapters, cannot be loaded while it runs."""
        ...

    async def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special ones."""
        ...

    async def generate(self, ask: Ask, adapter: str | None) -> Answer: ...

    async def load_weights(self, folder: Path, label: str) -> None:
        """Replace all weights by those of `folder`, forget what was cached under the old ones, and take over `label`.

        Requests in progress are answered by the old weights, and later ones wait for the new.
        """
        ...

    async def weights(self) -> str:
        """Return the label of the present weights."""
        ...

    async def load_adapter(self, folder: Path, name: str) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...


async def encoded_by(http: Http, text: str, model: str | None = None) -> list[int]:
    """Tokenize a text by `/tokenize`, which both kinds of server have."""
    named = {} if model is None else {"model": model}
    try:
        reply = await http.post("/tokenize", {"prompt": text, "add_special_tokens": False, **named})
        return [int(i) for i in reply["tokens"]]
    except RefusedError as error:
        raise error.as_model_error("start the server with its tokenizer, so that it can be compared with the policy's") from error
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(http.url, "the tokens of a text", "ask the server itself and no gateway") from error


def unreadable(url: str, what: str, fix: str) -> ModelError:
    """Make the error for an answer that is not what was asked for."""
    return ModelError(f"{url} answered without {what}", fix=fix)


def checked(answer: Answer, ask: Ask, url: str) -> Answer:
    """Return the answer if every token has a log-prob and its end is one that was asked for."""
    if len(answer.ids) != len(answer.logprobs) or not answer.ids:
        raise ModelError(
            f"{url} answered with {len(answer.ids)} tokens and {len(answer.logprobs)} log-probs",
            fix="ask the server itself and no gateway that rewrites answers, and turn speculative decoding off",
        )
    bad = [p for p in answer.logprobs if not _is_logprob(p)]
    if bad:
        raise ModelError(
            f"{url} answered with a log-prob of {bad[0]}: the served model's log-probs are not finite",
            fix="lower the learning rate, or serve the model in float32 or bfloat16 instead of float16",
        )
    ended = answer.ids[-1] in ask.stop_ids
    if answer.stopped and not ended:
        raise ModelError(
            f"{url} ended a turn at token {answer.ids[-1]}, which ends none here (those that do: {list(ask.stop_ids)})",
            fix="serve the policy's own folder, with its generation_config.json and tokenizer",
        )
    if not ended and len(answer.ids) < ask.max_new_tokens:
        raise ModelError(
            f"{url} stopped after {len(answer.ids)} of {ask.max_new_tokens} tokens without a token that ends a turn",
            fix="give the server a larger context and cache, or lower rollout.context_tokens",
        )
    if any(i in ask.stop_ids for i in answer.ids[:-1]) or len(answer.ids) > ask.max_new_tokens:
        raise ModelError(
            f"{url} went on after a token that ends a turn, or beyond {ask.max_new_tokens} tokens",
            fix="ask the server itself and no gateway that drops stop_token_ids",
        )
    return answer


def _is_logprob(value: Any) -> bool:
    # rounding may put a sure token a little above 0
    return isinstance(value, int | float) and math.isfinite(value) and _CLAMPED < value < 1e-3
