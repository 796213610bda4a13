"""An engine over a vLLM or SGLang server: token ids in, token ids and log-probs out, the policy's weights kept up to date."""

from __future__ import annotations

import asyncio
import logging
import statistics
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

from composer_replication.rollouts.collect import first_error
from composer_replication.rollouts.protocol import Sample, SampleRequest
from composer_replication.rollouts.serving.http import Http, RefusedError
from composer_replication.rollouts.serving.sglang import SglangServer
from composer_replication.rollouts.serving.vllm import VllmServer
from composer_replication.rollouts.serving.weights import PREFIX, PolicySource, WeightTransfer
from composer_replication.rollouts.serving.wire import Answer, Ask, Server, checked
from composer_replication.types.errors import ModelError

_log = logging.getLogger(__name__)

TOLERANCE = 0.1
"""Nats: the most by which the log-probs of policy and server may differ, in the mean over a probe's tokens. Rounding to bfloat16
stays below; other weights, another model or another temperature do not."""
_PROBE_TOKENS, _PROBE_TOP = 32, 8
_PROBE_TEMPERATURE = 2.0

T = TypeVar("T")


def open_server(
    kind: Literal["vllm", "sglang"], url: str, *, timeout_s: float = 1800.0, attempts: int = 6, model: str | None = None
) -> Server:
    """Return the server of a kind at an address; nothing is sent yet.

    Args:
        url: `http://HOST:PORT`.
        timeout_s: most seconds that one turn may take.
        attempts: at what costs nothing when it fails: refused connections and the statuses 429 and 503.
        model: for vLLM: name under which it serves the policy, by default its only model.
    """
    http = Http(url, timeout_s=timeout_s, attempts=attempts)
    return VllmServer(http, model) if kind == "vllm" else SglangServer(http)


class ServingEngine:
    """Samples turns from a server that many requests reach at once: an `AsyncEngine`, and an `Engine` for whole batches.

    Sessions are kept here as token ids; the server's prefix cache spares it to read them again. With a policy, its weights are
    loaded into the server before the first turn and before the first one after each `reset`, and what every turn was sampled
    from is checked: other weights than those are an error, be it another client's or those of a server started again.

    Args:
        stop_ids: tokens that end a turn.
        probe_ids: some token ids of the policy's vocabulary; by their continuation the server is proved.
        probe_text: what they encode; where it is given, the server's tokenizer has to agree.
        policy: what the server is to hold; None takes its weights as they are.
        transfer: the way of the policy's weights to the server's machine.
        tolerance: nats, see `TOLERANCE`.
        sleeper: the server once more, where it shares the policy's GPU.
        end_server: ends a server that was started for this engine.
        experts: of a mixture, how many a token goes through in a layer, where samples are to say which; 0 where not.
    """

    def __init__(
        self,
        server: Server,
        *,
        stop_ids: Sequence[int],
        probe_ids: Sequence[int],
        probe_text: str | None = None,
        policy: PolicySource | None = None,
        transfer: WeightTransfer | None = None,
        tolerance: float = TOLERANCE,
        sleeper: VllmServer | None = None,
        end_server: Callable[[], None] | None = None,
        experts: int = 0,
    ) -> None:
        if (policy is None) != (transfer is None):
            raise ValueError("a policy needs a transfer, and a transfer a policy")
        if sleeper is not None and policy is None:
            raise ValueError("a server without a policy does not sleep")
        self._server = server
        self._stop_ids, self._probe_ids = tuple(sorted(set(stop_ids))), tuple(probe_ids)
        self._probe_text = probe_text
        self._policy, self._transfer, self._tolerance = policy, transfer, tolerance
        self._sessions: dict[str, tuple[int, ...]] = {}
        self._window: int | None = None
        self._run, self._pushes = uuid.uuid4().hex[:8], 0
        self._pushed: str | None = None
        """Label of the policy's weights in the server: None when it has none yet."""
        self._stale = policy is not None
        self._sleeper, self._asleep = sleeper, False
        self._end_server, self._experts = end_server, experts
        self._preparation: Future[None] | None = None
        self.policy_version: int | None = None
        """Version of the policy that the server holds; None before its weights were loaded, and without a policy."""

    @property
    def url(self) -> str:
        return self._server.http.url

    @property
    def context_window(self) -> int:
        if self._window is None:
            self.check()
        assert self._window is not None
        return self._window

    def close(self, sessions: Sequence[str]) -> None:
        for name in sessions:
            self._sessions.pop(name, None)

    def reset(self) -> None:
        """Mark the weights as changed; call it after each change. Before the next turn the server gets them, and an empty
        cache."""
        self._sessions.clear()
        self._stale = self._policy is not None

    def rest(self) -> None:
        """Give back the memory of a GPU that the policy shares. Before the next turn the weights are loaded again.

        Raises:
            ModelError: the server fails.
        """
        if self._sleeper is None or self._asleep:
            return
        assert self._policy is not None
        self._await(self._sleeper.sleep(keeps_weights=self._policy.is_adapter))
        self._asleep = self._stale = True

    def end(self) -> None:
        """Close the connections, for good, and end a server that was started for this engine. Happens by itself when the program
        ends."""
        self._server.http.end()
        if self._end_server is not None:
            self._end_server()

    def check(self) -> None:
        """Ask the server for everything that sampling needs.

        Raises:
            ModelError: it is not there or of another kind, its log-probs are not those of the distribution it samples from, or it
                cannot load the policy's weights; names the option that it has to be started with.
        """
        self._await(self._check())

    def sample(self, requests: Sequence[SampleRequest], *, temperature: float) -> list[Sample]:
        """Sample one turn for every request, in order; all are in progress together.

        Raises:
            ModelError: the server fails or answers something else than asked for, a context leaves its window, or its weights are
                not the policy's. No session has moved then.
            StorageError: the policy's weights cannot be written.
        """
        if not requests:
            return []
        self._prepare()
        asks = [self._ask(request, temperature) for request in requests]
        answers = self._await(self._sample(asks))
        for request, ask, answer in zip(requests, asks, answers, strict=True):
            self._sessions[request.session] = ask.ids + answer.ids
        return [self._as_sample(answer) for answer in answers]

    async def prepare(self) -> None:
        """Check the server and load the policy's weights, where that is due; in a thread, and once for all who ask together.

        Raises as `check` and `push`. Cancelling a caller does not cancel the loading.
        """
        if not self._is_due:
            return
        if self._preparation is None or self._preparation.done():
            thread = ThreadPoolExecutor(1, "serving-prepare")
            self._preparation = thread.submit(self._prepare)
            thread.shutdown(wait=False)  # the thread ends when its work is done
        await asyncio.shield(asyncio.wrap_future(self._preparation))

    async def sample_one(self, request: SampleRequest, *, temperature: float) -> Sample:
        """Sample one turn, whatever else is in progress. Raises as `sample`.

        Cancelling it aborts the request: the connection is closed, so that the server can stop sampling. The session has not
        moved then.
        """
        await self.prepare()
        ask = self._ask(request, temperature)
        try:
            answer = await self._server.http.submit(self._sample_and_check(ask))
        except RefusedError as refused:
            raise refused.as_model_error() from None
        self._sessions[request.session] = ask.ids + answer.ids
        return self._as_sample(answer)

    def push(self) -> None:
        """Load the policy's weights into the server and prove that it samples from them. `sample` does it when it has to.

        Full weights: the server answers what is in progress, holds back what comes, loads the folder and empties its cache. An
        adapter gets a new name, and requests name theirs, so that nothing waits.

        Raises:
            ModelError: it cannot, or its log-probs are others than the policy's own.
            StorageError: the weights cannot be written.
            ObjectStoreError: the store they go through failed.
        """
        assert self._policy is not None
        assert self._transfer is not None
        version = self._policy.version
        self._pushes += 1
        label = f"{PREFIX}{self._run}-{version}-{self._pushes}"
        folder = self._transfer.send(self._policy, label)
        if self._sleeper is not None and self._asleep:
            self._policy.make_room()
            self._await(self._sleeper.wake())
            self._asleep = False
        before, self._pushed, self.policy_version = self._pushed, None, None
        adapter = label if self._policy.is_adapter else None
        self._await(self._load(folder, label, adapter))
        self._prove(adapter)
        if adapter is not None and before is not None:
            self._await(self._server.unload_adapter(before))
        self._pushed, self.policy_version, self._stale = label, version, False
        self._transfer.keep_only(label)

    # --- inside -----------------------------------------------------------------------------------------------------------

    @property
    def _is_due(self) -> bool:
        return self._window is None or self._stale

    def _prepare(self) -> None:
        if self._window is None:
            self.check()
        if self._stale:
            self.push()

    def _as_sample(self, answer: Answer) -> Sample:
        finished = answer.ids[-1] in self._stop_ids
        return Sample(ids=answer.ids, logprobs=answer.logprobs, finished=finished, experts=answer.experts)

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._server.http.run(work)
        except (RefusedError, BaseExceptionGroup) as failed:
            error = first_error(failed) if isinstance(failed, BaseExceptionGroup) else failed
        raise (error.as_model_error() if isinstance(error, RefusedError) else error) from None

    @property
    def _adapter(self) -> str | None:
        return self._pushed if self._policy is not None and self._policy.is_adapter else None

    def _ask(self, request: SampleRequest, temperature: float) -> Ask:
        ids = self._sessions.get(request.session, ()) + tuple(request.new_ids)
        if not ids or request.max_new_tokens < 1:
            raise ValueError(f"session {request.session!r} has nothing to read or nothing to sample")
        needed = len(ids) + request.max_new_tokens
        if needed > self.context_window:
            raise ModelError(
                f"session {request.session!r} may need {needed} positions and {self.url} has {self.context_window}",
                fix="lower budgets.context_tokens, or start the server with a longer context",
            )
        return Ask(
            ids=ids,
            max_new_tokens=request.max_new_tokens,
            temperature=temperature,
            seed=request.seed,
            stop_ids=self._stop_ids,
            experts=self._experts,
        )

    async def _sample(self, asks: Sequence[Ask]) -> list[Answer]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._sample_and_check(ask)) for ask in asks]
        return [task.result() for task in tasks]

    async def _sample_and_check(self, ask: Ask) -> Answer:
        """Sample one turn. Raises ModelError where it came from other weights than those that were loaded last."""
        pushed = self._pushed
        answer = await self._one(ask, self._adapter)
        if pushed is not None:
            label = answer.weights if answer.weights is not None else await self._server.weights()
            if label != pushed:
                raise ModelError(
                    f"{self.url} sampled from the weights {label!r} and not from this policy's",
                    fix="it was started again or another client loaded weights: keep it for one run at a time, and repeat the "
                    "command, which reloads them",
                )
        return answer

    async def _one(self, ask: Ask, adapter: str | None) -> Answer:
        return checked(await self._server.generate(ask, adapter), ask, self.url)

    def _probe(self, temperature: float, tokens: int, top: int = 0) -> Ask:
        return Ask(
            ids=self._probe_ids,
            max_new_tokens=tokens,
            temperature=temperature,
            seed=0,
            stop_ids=self._stop_ids,
            top=top,
            experts=self._experts,
        )

    async def _check(self) -> None:
        facts = await self._server.facts()
        for note in facts.notes:
            _log.warning("%s: %s", self.url, note)
        if self._policy is not None:
            await self._server.require_loading(adapter=self._policy.is_adapter)
        if self._probe_text is not None and tuple(await self._server.encode(self._probe_text)) != self._probe_ids:
            raise ModelError(
                f"{self.url} serves a model with another tokenizer than the policy's", fix="serve the policy, or name its folder"
            )
        likeliest = [(await self._one(self._probe(t, 1, _PROBE_TOP), None)).top for t in (1.0, _PROBE_TEMPERATURE)]
        both = sorted(likeliest[0].keys() & likeliest[1].keys(), key=likeliest[0].__getitem__)
        spread = [tops[both[-1]] - tops[both[0]] for tops in likeliest] if len(both) > 1 else [0.0, 0.0]
        if min(spread) <= 0.0 or spread[0] / spread[1] < _PROBE_TEMPERATURE**0.5:
            raise ModelError(
                f"{self.url} returns log-probs that do not depend on the temperature, and so are not those of the distribution "
                "that it samples from",
                fix=self._server.processed_fix,
            )
        self._window = facts.window

    async def _load(self, folder: Path, label: str, adapter: str | None) -> None:
        if adapter is None:
            await self._server.load_weights(folder, label)
        else:
            await self._server.load_adapter(folder, adapter)

    def _prove(self, adapter: str | None) -> None:
        """Raise ModelError when the server samples from another distribution than the policy's."""
        assert self._policy is not None
        answer = self._await(self._one(self._probe(1.0, _PROBE_TOKENS), adapter))
        own = self._policy.logprobs(self._probe_ids, answer.ids)
        apart = statistics.fmean(abs(a - b) for a, b in zip(own, answer.logprobs, strict=True))
        if not apart <= self._tolerance:
            raise ModelError(
                f"{self.url} has loaded the policy's weights, but its log-probs are {apart:.2f} nats from the policy's own "
                f"(at most {self._tolerance:g} is rounding)",
                fix="serve a model of the policy's shape, without quantization, and start the server again"
                + self._server.proof_note,
            )
