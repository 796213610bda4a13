"""SGLang: its native `/generate` with token ids in and out; weights from a folder, adapters by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer_replication.rollouts.serving.experts import experts_of_bytes
from composer_replication.rollouts.serving.http import RefusedError
from composer_replication.rollouts.serving.wire import Answer, Ask, Facts, Server, experts_in, unreadable
from composer_replication.types.errors import ModelError

_TOO_OLD = "serve with SGLang 0.5.23 or newer, and ask it itself: gateways leave token ids out"
_KEPT = 2
"""Positions at the end of its window that SGLang never fills."""
_NEUTRAL = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class SglangServer(Server):
    """SGLang's HTTP server.

    Its log-probs are those of the distribution that is sampled from, at temperature 0 the untempered policy's; only with
    SGLANG_RETURN_ORIGINAL_LOGPROB=1 in its environment they are those of the logits as the model gives them.
    """

    processed_fix = "start SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB in its environment"
    _ABOUT_WEIGHTS, _ADAPTERS = "/model_info", ""
    _ADAPTER_OPTIONS = "SGLang with --enable-lora, --max-lora-rank of at least the adapter's rank and its --lora-target-modules"

    async def facts(self) -> Facts:
        try:
            await self.weights()
            cards = (await self.http.get("/v1/models"))["data"]
            options = await self.http.get("/server_info")
        except (RefusedError, KeyError, TypeError) as error:
            raise ModelError(f"{self.http.url} is not an SGLang server", fix=f"give the address of one; {_TOO_OLD}") from error
        seeded = bool(options.get("enable_deterministic_inference"))
        note = "SGLang draws without the seeds it is sent, so that samples differ between runs: --enable-deterministic-inference"
        return Facts(window=int(cards[0]["max_model_len"]) - _KEPT, notes=() if seeded else (note,))

    async def require_loading(self, *, adapter: bool) -> None:
        if adapter and not (await self.http.get("/server_info")).get("enable_lora"):
            raise ModelError(
                f"{self.http.url} cannot load LoRA adapters",
                fix="start SGLang with --enable-lora, --max-lora-rank and --lora-target-modules",
            )

    async def generate(self, ask: Ask, adapter: str | None) -> Answer:
        body: dict[str, Any] = {
            "input_ids": list(ask.ids),
            "sampling_params": {
                "max_new_tokens": ask.max_new_tokens,
                "temperature": ask.temperature,
                "sampling_seed": ask.seed,
                "stop_token_ids": list(ask.stop_ids),
                **_NEUTRAL,
            },
            "return_logprob": True,
            "top_logprobs_num": ask.top,
            "stream": False,
        }
        if ask.experts:
            body["return_routed_experts"] = True
        if adapter is not None:
            body["lora_path"] = adapter
        try:
            return self._read(await self.http.post("/generate", body), ask, adapter)
        except RefusedError as error:
            raise error.as_model_error(_fix(error)) from error

    def _read(self, reply: Any, ask: Ask, adapter: str | None) -> Answer:
        url = self.http.url
        try:
            about = reply["meta_info"]
            ending = about["finish_reason"]
        except (KeyError, TypeError) as error:
            raise unreadable(url, "a sample", "give the address of an SGLang server") from error
        if reply.get("output_ids") is None:
            raise unreadable(url, "token ids, so that its text would have to be tokenised again", _TOO_OLD)
        if "output_token_logprobs" not in about:
            raise unreadable(url, "log-probs", _TOO_OLD)
        if about.get("prompt_tokens") != len(ask.ids):
            raise ModelError(
                f"{url} read {about.get('prompt_tokens')} tokens and was sent {len(ask.ids)}",
                fix="start SGLang without --allow-auto-truncate",
            )
        if ending["type"] == "abort":
            raise ModelError(
                f"{url} gave a sample up: {ending.get('message', 'aborted')}",
                fix="let no other client pause or abort while rollouts run, or look at the server's log",
            )
        pairs = [(entry[0], entry[1]) for entry in about["output_token_logprobs"]]
        if tuple(i for _, i in pairs) != tuple(reply["output_ids"]):
            raise ModelError(
                f"{url} answered with log-probs of other tokens than it sampled",
                fix="turn speculative decoding off, and ask the server itself and no gateway",
            )
        first = (about.get("output_top_logprobs") or [[]])[0] or []
        kind, read = about.get("routed_experts_dtype"), len(ask.ids) + len(pairs) - 1
        return Answer(
            ids=tuple(reply["output_ids"]),
            logprobs=tuple(p for p, _ in pairs),
            stopped=ending["type"] == "stop",
            weights=about.get("weight_version") if adapter is None else adapter,  # an adapter it has not is refused
            top={entry[1]: entry[0] for entry in first},
            experts=experts_in(
                about.get("routed_experts"), ask, url, lambda text: experts_of_bytes(text, kind, ask.experts, read)
            ),
        )

    # --- weights ----------------------------------------------------------------------------------------------------------

    async def load_weights(self, folder: Path, label: str) -> None:
        body = {"model_path": str(folder), "weight_version": label, "flush_cache": True, "abort_all_requests": False}
        try:
            reply = await self.http.post("/update_weights_from_disk", body)
        except RefusedError as error:
            raise error.as_model_error(
                "make the folder readable under this path on the server's machine too, and serve a model of the policy's shape; "
                "SGLang goes back to its former weights where it can, so start it again if it answers oddly"
            ) from error
        if reply.get("success") is not True:
            raise ModelError(f"{self.http.url} did not load {folder}: {reply}", fix="start the server again")


def _fix(error: RefusedError) -> str:
    if "context length" in error.message:
        return "start SGLang with a larger --context-length, or lower rollout.context_tokens"
    if "lora" in error.message.lower():
        return "the server was started again and has lost the adapter: repeat the command, which loads it"
    return "look at the server's log"
