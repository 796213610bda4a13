"""verl's rollout server `composer_cpu`: our transformers engine in a Ray actor, for machines that cannot run vLLM.

Requests that arrive together are sampled together. Sessions keep their keys and values over turns until new weights arrive.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from verl.workers.rollout import base
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from composer_replication.config import ModelConfig
from composer_replication.loss.forward.models import load_policy
from composer_replication.recipes.verl.plan import CPU_ROLLOUT
from composer_replication.rollouts.protocol import Sample, SampleRequest
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.types.errors import ModelError

_TOGETHER_S = 0.01
"""How long a batch waits for requests that arrive with its first."""


@dataclass(frozen=True, slots=True)
class _WaitingRequest:
    request: SampleRequest
    temperature: float
    answer: asyncio.Future[Sample]


class CPUServer:
    """A policy that is served to the agent loops."""

    def __init__(self, path: str) -> None:
        """Load the policy. Raises ModelError when none can be loaded from `path`."""
        torch.set_num_threads(1)
        self.model, tokenizer = load_policy(ModelConfig(path=path, device="cpu"))
        self.engine = TransformersEngine(self.model, tokenizer)
        self.version = 0
        self._read: dict[str, list[int]] = {}
        """Ids that each session has read or sampled."""
        self._waiting: list[_WaitingRequest] = []
        self._worker: asyncio.Task[None] | None = None

    async def generate(
        self, prompt_ids: list[int], sampling_params: Mapping[str, Any], request_id: str, session: str = "", **_: Any
    ) -> TokenOutput:
        """Sample a turn after `prompt_ids`, the session's whole context. Raises ValueError when it does not continue what the
        session has read."""
        name, prompt = session or request_id, list(prompt_ids)
        seen = self._read.get(name, [])
        if prompt[: len(seen)] != seen:
            raise ValueError(f"session {name!r}: its context is not what was read and sampled before, with more after it")
        request = SampleRequest(
            session=name,
            new_ids=tuple(prompt[len(seen) :]),
            max_new_tokens=int(sampling_params["max_tokens"]),
            seed=int(sampling_params["seed"]),
        )
        waiting = _WaitingRequest(request, float(sampling_params["temperature"]), asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        sample = await waiting.answer
        self._read[name] = [*prompt, *sample.ids]
        fields = {"global_steps": self.version}
        return TokenOutput(
            token_ids=list(sample.ids), log_probs=list(sample.logprobs), stop_reason="completed", extra_fields=fields
        )

    async def _work(self) -> None:
        """Answer the waiting requests, batch after batch; the error of a failed batch goes to each of its requests."""
        await asyncio.sleep(_TOGETHER_S)
        while self._waiting:
            temperature = self._waiting[0].temperature
            batch = [one for one in self._waiting if one.temperature == temperature]
            self._waiting = [one for one in self._waiting if one.temperature != temperature]
            sampling = asyncio.create_task(
                asyncio.to_thread(self.engine.sample, [one.request for one in batch], temperature=temperature)
            )
            await asyncio.wait([sampling])
            broke = sampling.exception()
            for number, one in enumerate(batch):
                if broke is None:
                    one.answer.set_result(sampling.result()[number])
                else:
                    one.answer.set_exception(broke)

    async def load(self, weights: Mapping[str, np.ndarray[Any, Any]], version: int | None) -> None:
        """Load new weights. Raises ModelError where they are not all of the policy's."""
        tensors = {name: torch.from_numpy(value.copy()) for name, value in weights.items()}
        missing, unexpected = self.model.load_state_dict(tensors, strict=False)
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
        if unexpected or set(missing) - tied:
            raise ModelError(f"the trainer's weights are not those of the policy: {[*unexpected, *missing][0]}")
        self.engine.reset()
        self._read.clear()
        if version is not None:
            self.version = version

    async def set_global_steps(self, version: int) -> None:
        self.version = version

    async def _nothing(self, *_: Any, **__: Any) -> None:
        """Do nothing: no memory of a device has to be freed."""

    wake_up = sleep = abort_all_requests = resume_generation = clear_kv_cache = _nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = _nothing


class CPUReplica(RolloutReplica):
    """A replica that starts a server."""

    async def launch_servers(self) -> None:
        server = ray.remote(CPUServer).options(name=_name(self.replica_rank), num_cpus=0, max_concurrency=1000)
        self._server_handle = server.remote(self.model_config.path)
        self.servers = [self._server_handle]
        self._server_address = _name(self.replica_rank)


class CPURollout(BaseRollout):
    """The trainer's side of the server, which sends it the weights."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: nothing was released."""

    async def release(self) -> None:
        """Do nothing: nothing is on a device."""

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None, **_: Any
    ) -> None:
        whole = {name: getattr(w, "full_tensor", lambda w=w: w)().detach().float().cpu().numpy() for name, w in weights}
        await ray.get_actor(_name(self.replica_rank)).load.remote(whole, global_steps)


def _name(rank: int) -> str:
    return f"{CPU_ROLLOUT}_{rank}"


base._ROLLOUT_REGISTRY[(CPU_ROLLOUT, "async")] = f"{__name__}.{CPURollout.__name__}"  # verl has no function for it
RolloutReplicaRegistry.register(CPU_ROLLOUT, lambda: CPUReplica)
