"""Engines that sample for an arm: its model in this process, or a server that is given its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from composer_replication.config import RunConfig
from composer_replication.diloco.store import open_store
from composer_replication.loss.forward import evaluating, sequence_logprobs
from composer_replication.loss.forward.models import save_policy
from composer_replication.rollouts.protocol import Engine
from composer_replication.rollouts.serving import ServingEngine, SharedFolder, WeightTransfer, open_server
from composer_replication.rollouts.serving.through_store import ThroughStore
from composer_replication.rollouts.transformers_engine import TransformersEngine, stop_ids_of
from composer_replication.trainer.learning.learner import Learner

__all__ = ["LearnerPolicy", "PolicyEngine", "open_engine", "open_server_engine"]

_PROBE = 'def total(prices):\n    """The sum of all prices."""\n    return '


class PolicyEngine(Engine, Protocol):
    """An engine over a policy that is being trained."""

    def reset(self) -> None:
        """Forget every session. To be called after each change of the weights."""
        ...


@dataclass(frozen=True, slots=True)
class LearnerPolicy:
    """The policy of a learner, in the form that a serving engine needs."""

    learner: Learner
    tokenizer: PreTrainedTokenizerBase

    @property
    def version(self) -> int:
        return self.learner.version

    @property
    def is_adapter(self) -> bool:
        return hasattr(self.learner.policy, "peft_config")

    def save(self, folder: Path) -> None:
        save_policy(self.learner.policy, self.tokenizer, folder)

    @torch.no_grad()
    def logprobs(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> Sequence[float]:
        policy: Any = self.learner.policy
        rows = torch.tensor([[*prompt_ids, *ids]], device=policy.device)
        wanted = torch.zeros_like(rows)
        wanted[:, len(prompt_ids) :] = 1
        with evaluating(policy):
            scored: list[float] = sequence_logprobs(policy, rows, None, wanted)[0, len(prompt_ids) :].tolist()
        return scored


def open_engine(config: RunConfig, learner: Learner, tokenizer: PreTrainedTokenizerBase, arm: str, folder: Path) -> PolicyEngine:
    """Open the engine that a run file names.

    Args:
        folder: for the policy's weights on their way to a server, unless the run file names another place.

    Raises:
        ModelError: the policy cannot be sampled from, or the server lacks something (`ServingEngine.check`).
        ConfigError, ObjectStoreError: the store that weights go through cannot be opened, or has another run's.
    """
    rollout, policy = config.rollout, learner.policy
    if rollout.engine == "transformers":
        return TransformersEngine(policy, tokenizer)
    assert rollout.server_url is not None
    engine = ServingEngine(
        open_server(rollout.engine, rollout.server_url, timeout_s=rollout.stall_s),
        stop_ids=sorted(stop_ids_of(policy.generation_config, tokenizer)),
        probe_ids=_probe_ids(tokenizer),
        policy=LearnerPolicy(learner, tokenizer),
        transfer=_transfer(config, arm, folder),
    )
    engine.check()
    return engine


def _transfer(config: RunConfig, arm: str, folder: Path) -> WeightTransfer:
    """Return the way of the policy's weights to the server that the run file names."""
    rollout = config.rollout
    if rollout.server_store is not None:
        store = open_store(rollout.server_store).at(config.name)
        return ThroughStore(store, folder, run=config.name, timeout_s=rollout.stall_s)
    return SharedFolder(folder if rollout.server_weights is None else rollout.server_weights / config.name / arm)


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
