"""One arm in training: policy, engine, collector, signals and journal, put together and resumed from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from composer_replication.config import RunConfig
from composer_replication.loss.forward import LogprobCache
from composer_replication.loss.forward.model_checkpoint import save_checkpoint
from composer_replication.loss.forward.models import load_policy, window_of
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.ask_teachers import teacher_totals
from composer_replication.trainer.checkpoints.restore import restore, trained_on
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.engines.open_engine import PolicyEngine, ServedPolicy, open_engine
from composer_replication.trainer.engines.own_server import LOG, SERVING, served_dtype
from composer_replication.trainer.journal import ArmJournal, RolloutMeter
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.pairs.replay import collect_pairs, pairs_digest, stored_pairs, wants_replay
from composer_replication.trainer.planning.prompts import check_prompts, prompt_lengths
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.sampling.task_shards import TaskShard
from composer_replication.trainer.signals import SignalMaker
from composer_replication.types import Pair

SLOW_PATHS = {
    "head": "losses take the whole [tokens, vocabulary] logits",
    "prefix": "losses read what sequences have in common once per sequence",
}
"""Cost of each slow path that is taken when a fast one does not apply (`loss.forward.fallbacks`)."""


@dataclass(slots=True)
class ArmTrainer:
    """The parts of one arm in training."""

    context: RunContext
    config: RunConfig
    arm: str
    learner: Learner
    engine: PolicyEngine
    renderer: ChatRenderer
    meter: RolloutMeter
    journal: ArmJournal
    collector: RolloutCollector
    signals: SignalMaker
    fingerprint: Mapping[str, str]
    """Digests of what the arm was made of: policy, tasks, pairs file."""

    @classmethod
    def create(
        cls, context: RunContext, config: RunConfig, arm: str, pair_logprobs: LogprobCache, shard: TaskShard | None = None
    ) -> ArmTrainer:
        """Build an arm from the configured policy. `shard` is the part of the tasks that this replica trains on.

        Raises:
            ConfigError: a task's prompt leaves no room for a turn (`check_prompts`).
            ComposerError: as `load_policy`, `open_engine` and `signal_maker`.
        """
        torch.manual_seed(config.seed)
        model, tokenizer = load_policy(config.model)
        made_of = context.fingerprint(config, model)
        learner = Learner(model, config, pair_logprobs, sharded=config.substrate.shard)
        learner.lead()
        renderer = ChatRenderer(tokenizer)
        dtype = served_dtype(config) if config.rollout.starts_server else None
        served = ServedPolicy(learner.policy, tokenizer, lambda: learner.version, learner, dtype)
        folder = context.run_dir.ckpt_path / arm / SERVING
        prompts = prompt_lengths((*context.train, *context.held_out), config, renderer)
        check_prompts(prompts, config, window_of(model.config))  # before a server is started
        if config.rollout.starts_server:
            context.terminal.note(f"{arm}: starting a vLLM server, which writes to {folder / LOG}")
        with ExitStack() as opened:
            engine = open_engine(config, served, arm, folder)
            opened.callback(engine.end)
            check_prompts(prompts, config, engine.context_window)  # a server may read less
            meter = context.meter()
            journal = context.journal(config, arm, meter)
            signals = context.signal_maker(config, renderer, engine.context_window, learner, engine)
            collector = RolloutCollector(context, config, engine, renderer, journal, shard, signals.steps)
            opened.pop_all()
        return cls(context, config, arm, learner, engine, renderer, meter, journal, collector, signals, made_of)

    def close(self) -> None:
        """End the engine, and with it a server that the arm has started."""
        self.engine.end()

    async def begin(self, *, resumed: bool | None = None) -> list[Pair]:
        """Resume the arm, or evaluate its start, collect its pairs and save it. Return the pairs.

        Args:
            resumed: whether a callback has resumed the arm; None leaves it to the arm's own checkpoints.

        Raises:
            CheckpointError: as `resume`.
            ComposerError: whatever a part of the recipe has to say.
        """
        if (processes := self.learner.accelerator.num_processes) > 1:
            self.journal.note(f"{processes} processes share each update")
        for what, why in self.learner.fallbacks().items():
            self.journal.note(f"{SLOW_PATHS[what]}: {why}")
        replays = wants_replay(self.config)
        if self.resume() if resumed is None else resumed:
            pairs = stored_pairs(self.context, self.arm) if replays else []
        else:
            self.journal.log(0, await self.collector.evaluate(0))
            if replays:
                self.engine.rest()  # the policy reads the pairs, on the GPU that a server may share
            pairs = await collect_pairs(self.context, self.config, self.collector, self.learner) if replays else []
            self.save()
        if replays:
            self.journal.teacher_totals = teacher_totals(self.context, self.arm)
        return pairs

    def resume(self) -> bool:
        """Go back to the arm's last checkpoint, or to nothing where there is none. Return whether there was one.

        Raises:
            CheckpointError: it is damaged, or its policy, tasks or pairs were others. Nothing is forgotten then.
        """
        pairs = pairs_digest(self.context, self.arm)
        state = restore(self.checkpoints, self.learner, fingerprint=self.fingerprint, pairs=pairs)
        if state is None:
            self.journal.rewind(-1)
            return False
        self.continue_from(state)
        return True

    def counters(self) -> dict[str, Any]:
        """Return what the next step depends on besides the learner, as plain JSON."""
        return {**self.meter.state_dict(), **self.collector.state_dict()}

    def continue_from(self, counters: Mapping[str, Any]) -> None:
        """Continue at the learner's step with the counters it had there; what the files say of later steps is forgotten."""
        self.journal.resumed(self.learner.version)
        self.meter.load_state_dict(counters)
        self.collector.load_state_dict(counters)

    @property
    def checkpoints(self) -> Path:
        return self.context.run_dir.ckpt_path / self.arm

    def save(self) -> None:
        """Write a checkpoint of everything that the next step depends on, with the arm's card. Raises StorageError."""
        self.journal.card()
        state = {**self.counters(), **trained_on(self.fingerprint, pairs_digest(self.context, self.arm))}
        save_checkpoint(self.checkpoints, self.learner.version, self.learner, self.renderer.tokenizer, state)
