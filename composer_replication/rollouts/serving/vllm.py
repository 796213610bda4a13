"""vLLM: `/v1/completions` with token ids in and out; weights through the endpoints of its development mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer_replication.rollouts.serving.experts import experts_of_npy
from composer_replication.rollouts.serving.http import RefusedError
from composer_replication.rollouts.serving.wire import Answer, Ask, Facts, Server, experts_in, unreadable
from composer_replication.types.errors import ModelError

_TOO_OLD = "serve with vLLM 0.32 or newer, and ask it itself: gateways leave token ids out"
_NEUTRAL = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Sent explicitly; otherwise the server would take its defaults from the model's generation_config.json."""


class VllmServer(Server):
    """vLLM's OpenAI-compatible server.

    Its log-probs are by default those of the logits as the model gives them, whatever the temperature. With `--logprobs-mode
    processed_logprobs` they are those of the distribution that is sampled from, and at temperature 0 the untempered policy's.

    Args:
        model: name under which it serves the policy; by default its only model.
    """

    processed_fix = "start vLLM with --logprobs-mode processed_logprobs"
    proof_note = "; on a CPU, vLLM cannot replace a head that is tied to the embeddings"
    _ABOUT_WEIGHTS, _ADAPTERS = "/weight_info", "/v1"
    _ADAPTER_OPTIONS = "vLLM with --enable-lora and --max-lora-rank of at least the adapter's rank"

    async def facts(self) -> Facts:
        try:
            await self.http.get("/version")  # vLLM's own, which other servers of OpenAI's API lack
            cards = (await self.http.get("/v1/models"))["data"]
            base = {card["id"]: card for card in cards if not card.get("parent")}
        except RefusedError as error:
            raise error.as_model_error("give the address of a vLLM server") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{self.http.url} is not a vLLM server", fix="give the address of one") from error
        if self._model is None:
            self._model = next(iter(base))
        if self._model not in base:
            raise ModelError(
                f"{self.http.url} does not serve {self._model!r} but {', '.join(base)}", fix="name the model that it serves"
            )
        return Facts(window=int(base[self._model]["max_model_len"]))

    async def require_loading(self, *, adapter: bool) -> None:
        if adapter:
            try:
                await self.http.get("/v1/load_lora_adapter")
            except RefusedError as error:
                if error.status == 405:  # the route exists, for POST
                    return
                raise ModelError(
                    f"{self.http.url} cannot load LoRA adapters while it runs",
                    fix="start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment",
                ) from error
            return
        try:
            await self.weights()
        except RefusedError as error:
            raise ModelError(
                f"{self.http.url} cannot load weights while it runs",
                fix="start vLLM 0.32 or newer with VLLM_SERVER_DEV_MODE=1 in its environment",
            ) from error

    async def generate(self, ask: Ask, adapter: str | None) -> Answer:
        body: dict[str, Any] = {
            "model": adapter or self._model,
            "prompt": list(ask.ids),
            "max_tokens": ask.max_new_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "stop_token_ids": list(ask.stop_ids),
            "ignore_eos": True,  # the ends of a turn are in stop_token_ids
            "logprobs": ask.top,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "add_special_tokens": False,
            **_NEUTRAL,
        }
        try:
            return self._read(await self.http.post("/v1/completions", body), ask, adapter)
        except RefusedError as error:
            raise error.as_model_error(_fix(error, adapter)) from error

    def _read(self, reply: Any, ask: Ask, adapter: str | None) -> Answer:
        url = self.http.url
        try:
            (choice,) = reply["choices"]
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable(url, "a completion", "give the address of a vLLM server") from error
        if choice.get("token_ids") is None or choice.get("prompt_token_ids") is None:
            raise unreadable(url, "token ids, so that its text would have to be tokenised again", _TOO_OLD)
        if tuple(choice["prompt_token_ids"]) != ask.ids:
            raise ModelError(f"{url} read other tokens than it was sent", fix="ask the server itself and no gateway")
        found = choice.get("logprobs") or {}
        if not found.get("token_logprobs"):
            raise unreadable(url, "log-probs", _TOO_OLD)
        first = (found.get("top_logprobs") or [{}])[0] or {}
        return Answer(
            ids=tuple(choice["token_ids"]),
            logprobs=tuple(found["token_logprobs"]),
            stopped=choice.get("finish_reason") == "stop",
            weights=None if adapter is None else reply.get("model"),
            top={int(token.removeprefix("token_id:")): p for token, p in first.items()} if ask.top else {},
            experts=experts_in(choice.get("routed_experts"), ask, url, experts_of_npy),
        )

    # --- weights ----------------------------------------------------------------------------------------------------------

    async def load_weights(self, folder: Path, label: str) -> None:
        try:
            await self.http.post("/pause?mode=wait")
            await self.http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            emptied = await self.http.post("/reset_prefix_cache")
            if emptied != {"success": True}:
                raise ModelError(f"{self.http.url} could not empty its prefix cache: {emptied}", fix="start the server again")
            await self.http.post("/update_weight_version", {"new_version": label})
            await self.http.post("/resume")
        except RefusedError as error:
            raise ModelError(
                f"{self.http.url}{error.path} answered HTTP {error.status} while it loaded {folder}: {error.message}; it stays "
                "paused, so that no request samples from half of these weights",
                fix="make the folder readable under this path on the server's machine too, and serve a model of the policy's "
                "shape; a load that succeeds ends the pause",
            ) from error

    async def sleep(self, *, keeps_weights: bool) -> None:
        """Give back the memory of its GPUs once it has answered what is in progress. It has to be started with
        --enable-sleep-mode. https://docs.vllm.ai/en/latest/features/sleep_mode.html

        Args:
            keeps_weights: move them to CPU memory, instead of dropping them.
        """
        await self._sleep_or_wake(f"/sleep?level={1 if keeps_weights else 2}&mode=wait")

    async def wake(self) -> None:
        """Take the memory back. Weights that were dropped have to be loaded before anything is sampled."""
        await self._sleep_or_wake("/wake_up")

    async def _sleep_or_wake(self, path: str) -> None:
        try:
            await self.http.post(path)
        except RefusedError as error:
            raise error.as_model_error("look at the server's log: other programs may have taken the GPU's memory") from error


def _fix(error: RefusedError, adapter: str | None) -> str:
    if error.status == 404 and adapter is not None:
        return "the server was started again and has lost the adapter: repeat the command, which loads it"
    if "context length" in error.message or "max_model_len" in error.message:
        return "start vLLM with a larger --max-model-len, or lower rollout.context_tokens"
    if "vocabulary" in error.message:
        return "serve the model whose tokenizer the policy has"
    return "look at the server's log"
