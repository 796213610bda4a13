"""Engines that sample for an arm: its model in this process, or a server that is given its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from composer_replication.config import RunConfig
from composer_replication.diloco.store import open_store
from composer_replication.loss.forward import evaluating, experts_per_token, replays_routers, sequence_logprobs
from composer_replication.loss.forward.models import save_policy
from composer_replication.rollouts.protocol import Engine
from composer_replication.rollouts.serving import ServingEngine, SharedFolder, WeightTransfer, open_server
from composer_replication.rollouts.serving.through_store import ThroughStore
from composer_replication.rollouts.serving.vllm import VllmServer
from composer_replication.rollouts.transformers_engine import TransformersEngine, stop_ids_of
from composer_replication.trainer.engines.own_server import start_server
from composer_replication.trainer.learning.memory import give_memory_back

if TYPE_CHECKING:
    from composer_replication.trainer.learning.learner import Learner

_PROBE = 'def total(prices):\n    """The sum of all prices."""\n    return '


class PolicyEngine(Engine, Protocol):
    """An engine over a policy that is being trained."""

    def reset(self) -> None:
        """Forget every session. To be called after each change of the weights."""
        ...

    def rest(self) -> None:
        """Leave the device to an update, until the next turn."""
        ...

    def end(self) -> None:
        """Let go of everything, for good."""
        ...


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """A model as a serving engine wants it."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    steps: Callable[[], int]
    """Returns the number of optimizer steps that the model has taken."""
    learner: Learner | None = None
    """Reads the model, which may be sharded; None where this process has all of it."""
    dtype: torch.dtype | None = None
    """The type that the server computes in, where it is known: weights are sent in it."""

    @property
    def version(self) -> int:
        return self.steps()

    @property
    def is_adapter(self) -> bool:
        return hasattr(self.model, "peft_config")

    def make_room(self) -> None:
        if self.learner is None:
            give_memory_back()
        else:
            self.learner.give_memory_back()

    def save(self, folder: Path) -> None:
        weights = None if self.learner is None else self.learner.gathered_weights()
        save_policy(self.model, self.tokenizer, folder, weights, self.dtype)

    @torch.no_grad()
    def logprobs(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> Sequence[float]:
        rows = torch.tensor([[*prompt_ids, *ids]], device=self.model.device)
        wanted = torch.zeros_like(rows)
        wanted[:, len(prompt_ids) :] = 1
        if self.learner is not None:
            found = self.learner.logprobs(rows, wanted)
        else:
            with evaluating(self.model):
                found = sequence_logprobs(self.model, rows, None, wanted)
        scored: list[float] = found[0, len(prompt_ids) :].tolist()
        return scored


def open_engine(config: RunConfig, policy: ServedPolicy, arm: str, folder: Path, *, generator: int = 0) -> PolicyEngine:
    """Return the engine that a run file names.

    Args:
        folder: for the policy's weights on their way to a server, unless the run file names another place, and for the log of a
            server that is started.
        generator: the number of the mesh's generator that asks; each has a server.

    Raises:
        ModelError: the policy cannot be sampled from, or the server lacks something (`ServingEngine.check`).
        ConfigError, ObjectStoreError: the store that weights go through cannot be opened, or has another run's.
        MissingExtraError: as `start_server`.
    """
    rollout, tokenizer = config.rollout, policy.tokenizer
    if rollout.engine == "transformers":
        return TransformersEngine(policy.model, tokenizer)
    with ExitStack() as opened:
        started = None
        if rollout.starts_server:
            policy.make_room()
            started = start_server(config, policy.model.config, folder)
            opened.callback(started.close)
        url = rollout.server_urls[generator] if started is None else started.url
        server = open_server(rollout.engine, url, timeout_s=rollout.stall_s, model=None if started is None else started.name)
        engine = ServingEngine(
            server,
            stop_ids=sorted(stop_ids_of(policy.model.generation_config, tokenizer)),
            probe_ids=_probe_ids(tokenizer),
            policy=policy,
            transfer=_transfer(config, arm, folder, generator),
            sleeper=server if started is not None and started.sleeps and isinstance(server, VllmServer) else None,
            end_server=None if started is None else started.close,
            experts=experts_per_token(policy.model) if replays_routers(policy.model) else 0,
        )
        engine.check()
        opened.pop_all()
        return engine


def _transfer(config: RunConfig, arm: str, folder: Path, generator: int) -> WeightTransfer:
    """Return the way of the policy's weights to the server that the run file names."""
    rollout = config.rollout
    name = config.name if len(rollout.server_urls) == 1 else f"{config.name}.{generator}"
    if rollout.server_store is not None:
        # half of it: else the rollouts, which wait, would be called stuck before the weights are called missing
        return ThroughStore(open_store(rollout.server_store).at(name), folder, run=name, timeout_s=rollout.stall_s / 2)
    return SharedFolder(folder if rollout.server_weights is None else rollout.server_weights / name / arm)


def open_server_engine(
    kind: Literal["vllm", "sglang"], url: str, tokenizer: PreTrainedTokenizerBase, generation: GenerationConfig | None
) -> ServingEngine:
    """Open an engine that takes a server's weights as they are. Raises ModelError as `ServingEngine.check`."""
    engine = ServingEngine(
        open_server(kind, url),
        stop_ids=sorted(stop_ids_of(generation, tokenizer)),
        probe_ids=_probe_ids(tokenizer),
        probe_text=_PROBE,
    )
    engine.check()
    return engine


def _probe_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ids: list[int] = tokenizer.encode(_PROBE, add_special_tokens=False)
    return ids
