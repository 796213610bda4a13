"""A vLLM server that says how likely its model finds tokens it is given: `prompt_logprobs` of `/v1/completions`.

https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from composer_replication.rollouts.serving.http import Http, RefusedError
from composer_replication.rollouts.serving.wire import CLAMPED
from composer_replication.types.errors import ConfigError, ModelError

_PROBE = 'def f(x):\n    return [x, "é"]  # <tool_call>\n'
"""Text that two tokenizers hardly cut into the same ids by chance."""
_ATTEMPTS = 8


class PromptScorer:
    """One model on one server.

    Args:
        url: of the server's root, or with `/v1`.
        model: the server's name for it.
        key: the server's `--api-key`; empty for none.
        at_once: requests in flight at most.
        timeout_s: most seconds without a byte from the server.
    """

    def __init__(self, url: str, model: str, *, key: str = "", at_once: int, timeout_s: float) -> None:
        self.http = Http(url, timeout_s=timeout_s, attempts=_ATTEMPTS, key=key)
        self._model, self._at_once = model, at_once

    def check(self, tokenizer: Any, count: int = 1) -> None:
        """See to it that the server's model has the tokens of `tokenizer`, and that it gives log-probs of a prompt, of `count`
        tokens in each place.

        Raises:
            ConfigError: its tokenizer is another one.
            ModelError: it cannot be reached, does not tokenize, or gives no log-probs of a prompt.
        """
        ids = list(tokenizer.encode(_PROBE, add_special_tokens=False))
        body = {"model": self._model, "prompt": _PROBE, "add_special_tokens": False}
        try:
            reply = self.http.run(self.http.post("/tokenize", body))
        except RefusedError as error:
            raise error.as_model_error("name a vLLM server and the model that it serves") from error
        theirs = reply.get("tokens") if isinstance(reply, dict) else None
        if theirs != ids:
            raise ConfigError(
                f"{self._model} at {self.http.url} has another tokenizer than the policy, so it cannot score the policy's tokens",
                fix="serve a model of the policy's family, or set scores_tokens = false for this teacher",
            )
        self.likeliest([ids], count)

    def logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-prob of every token but the first of each sequence, given those before it, in nats at temperature 1; NaN
        where the server has none.

        Raises:
            ModelError: the server cannot be reached, refuses, or answers something else.
        """
        told = self.http.run(self._all(sequences, 1, [len(ids) - 1 for ids in sequences]))
        return [
            [places.get(token, math.nan) for token, places in zip(ids[1:], each, strict=True)]
            for ids, each in zip(sequences, told, strict=True)
        ]

    def likeliest(
        self, sequences: Sequence[Sequence[int]], count: int, last: Sequence[int] | None = None
    ) -> list[list[dict[int, float]]]:
        """Return, for every token but the first of each sequence, the `count` likeliest tokens in its place, in descending order,
        with their log-probs in nats at temperature 1; fewer where the server tells of fewer.

        Args:
            last: return these many last places of each sequence.

        Raises:
            ModelError: as `logprobs`.
        """
        kept = [len(ids) - 1 for ids in sequences] if last is None else last
        told = self.http.run(self._all(sequences, count, kept))
        return [[dict(sorted(place.items(), key=lambda one: -one[1])[:count]) for place in each] for each in told]

    async def _all(self, sequences: Sequence[Sequence[int]], count: int, last: Sequence[int]) -> list[list[dict[int, float]]]:
        """Ask about every sequence, and keep its `last` places: what is told of a whole prompt is large."""
        places = asyncio.Semaphore(self._at_once)

        async def one(ids: Sequence[int], kept: int) -> list[dict[int, float]]:
            async with places:
                return (await self._one(ids, count))[len(ids) - 1 - kept :]

        return list(await asyncio.gather(*map(one, sequences, last)))

    async def _one(self, ids: Sequence[int], count: int) -> list[dict[int, float]]:
        """Return the log-probs of each token but the first, and of the `count` likeliest ones in its place."""
        body = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": 1,  # the least that it takes
            "temperature": 0.0,
            "prompt_logprobs": count,
            "add_special_tokens": False,
        }
        try:
            reply = await self.http.post("/v1/completions", body)
        except RefusedError as error:
            raise error.as_model_error(
                "serve it with a --max-model-len above rollout.context_tokens and, for loss.replay.soft_targets, a "
                "--max-logprobs of at least loss.replay.soft_top_k, and look at its log"
            ) from error
        return self._read(reply, ids)

    def _read(self, reply: Any, ids: Sequence[int]) -> list[dict[int, float]]:
        try:
            (choice,) = reply["choices"]
            scores = choice["prompt_logprobs"]
            found = [{int(token): float(one["logprob"]) for token, one in place.items()} for place in scores[1:]]
            missing = any(token not in place for token, place in zip(ids[1:], found, strict=False))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(
                f"{self.http.url} gives no log-probs of a prompt's tokens",
                fix="name a vLLM server itself and no gateway, or set scores_tokens = false for this teacher",
            ) from error
        if len(scores) != len(ids) or missing:
            raise ModelError(f"{self.http.url} read other tokens than it was sent", fix="ask the server itself and no gateway")
        return [{token: one for token, one in place.items() if math.isfinite(one) and one > CLAMPED} for place in found]
