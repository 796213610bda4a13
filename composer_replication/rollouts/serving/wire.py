"""The requests an engine makes of any server, and checks that its answers fit."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from composer_replication.rollouts.serving.http import Http, RefusedError
from composer_replication.types.errors import ModelError
from composer_replication.types.routed_experts import RawExperts

_EXPERTS_FIX = "start it with --enable-return-routed-experts, or set model.router_replay = false"
CLAMPED = -9999.0
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
    experts: int = 0
    """Experts of a mixture that a token goes through in a layer; the answer has to say which. 0: they do not matter."""


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
    experts: RawExperts | None = None
    """Experts of every token but the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A server's description of itself."""

    window: int
    """Most positions of one sequence that can be sampled in full."""
    notes: Sequence[str] = ()
    """Notes on its samples that are not errors."""


class Server(ABC):
    """A kind of server at one address. Every method raises ModelError; what it names is the address and the fix."""

    processed_fix: ClassVar[str]
    """How to make the server return log-probs of the distribution it samples from."""
    proof_note: ClassVar[str] = ""
    """Known reasons for it to keep old weights after a load, as the end of a sentence."""
    _ABOUT_WEIGHTS: ClassVar[str]
    """Path that answers with the label of the weights."""
    _ADAPTERS: ClassVar[str]
    """Path of `load_lora_adapter` and `unload_lora_adapter`."""
    _ADAPTER_OPTIONS: ClassVar[str]
    """Options that a server needs for adapters."""

    def __init__(self, http: Http, model: str | None = None) -> None:
        self.http = http
        self._model = model

    @abstractmethod
    async def facts(self) -> Facts:
        """Return the server's facts. Also raises when another kind of server, or none, is at the address."""

    @abstractmethod
    async def require_loading(self, *, adapter: bool) -> None:
        """Raise when weights, or adapters, cannot be loaded while it runs."""

    @abstractmethod
    async def generate(self, ask: Ask, adapter: str | None) -> Answer: ...

    @abstractmethod
    async def load_weights(self, folder: Path, label: str) -> None:
        """Replace all weights by those of `folder`, forget what was cached under the old ones, and take over `label`.

        Requests in progress are answered by the old weights, and later ones wait for the new.
        """

    async def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special ones."""
        named = {} if self._model is None else {"model": self._model}
        try:
            reply = await self.http.post("/tokenize", {"prompt": text, "add_special_tokens": False, **named})
            return [int(i) for i in reply["tokens"]]
        except RefusedError as error:
            raise error.as_model_error(
                "start the server with its tokenizer, so that it can be compared with the policy's"
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable(self.http.url, "the tokens of a text", "ask the server itself and no gateway") from error

    async def weights(self) -> str:
        """Return the label of the present weights."""
        return str((await self.http.get(self._ABOUT_WEIGHTS))["weight_version"])

    async def load_adapter(self, folder: Path, name: str) -> None:
        try:
            await self.http.post(f"{self._ADAPTERS}/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except RefusedError as error:
            raise error.as_model_error(
                f"make the folder readable under this path on the server's machine too, and start {self._ADAPTER_OPTIONS}"
            ) from error

    async def unload_adapter(self, name: str) -> None:
        try:
            await self.http.post(f"{self._ADAPTERS}/unload_lora_adapter", {"lora_name": name})
        except RefusedError as error:
            raise error.as_model_error() from error


def experts_in(written: Any, ask: Ask, url: str, read: Callable[[Any], RawExperts]) -> RawExperts | None:
    """Return the experts that an answer names, as far as they were asked for. Raises ModelError."""
    if not ask.experts:
        return None
    if written is None:
        raise unreadable(url, "the experts that tokens went through", _EXPERTS_FIX)
    try:
        return read(written)
    except ValueError as error:
        raise unreadable(url, f"experts that can be read ({error})", "serve with a version that is known to work") from error


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
    wanted = len(ask.ids) + len(answer.ids) - 1
    if answer.experts is not None and answer.experts.shape[::2] != (wanted, ask.experts):
        raise ModelError(
            f"{url} answered with experts of the shape {list(answer.experts.shape)} for {wanted} tokens that go through "
            f"{ask.experts} in each layer",
            fix="serve the policy's own architecture, and ask the server itself and no gateway",
        )
    if any(i in ask.stop_ids for i in answer.ids[:-1]) or len(answer.ids) > ask.max_new_tokens:
        raise ModelError(
            f"{url} went on after a token that ends a turn, or beyond {ask.max_new_tokens} tokens",
            fix="ask the server itself and no gateway that drops stop_token_ids",
        )
    return answer


def _is_logprob(value: Any) -> bool:
    # rounding may put a sure token a little above 0
    return isinstance(value, int | float) and math.isfinite(value) and CLAMPED < value < 1e-3
