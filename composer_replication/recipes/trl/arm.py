"""One arm under TRL. Trainer and optimizer are TRL's; tasks, rollouts, signals, files and evaluation are those of the local loop.

TRL asks for a batch of completions (`rollout`) and, having scored them, for what they teach (`teach`); what it logs is recorded
(`on_log`), and what it saves becomes a checkpoint of the run (`on_save`).
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase, TrainerCallback

from composer_replication.config import LossConfig, ReplayConfig, RunConfig
from composer_replication.loss.forward import LogprobCache
from composer_replication.loss.forward.model_checkpoint import adopt_checkpoint, latest_checkpoint, read_checkpoint
from composer_replication.loss.forward.models import load_policy, no_progress_bars
from composer_replication.observe import Phase
from composer_replication.recipes.trl.composer_trainer import ComposerReplicationTrainer
from composer_replication.recipes.trl.options import make_grpo_config
from composer_replication.recipes.trl.step_signals import StepSignals
from composer_replication.rollouts.transformers_engine import TransformersEngine
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.ask_teachers import teacher_totals
from composer_replication.trainer.checkpoints.restore import refuse_others
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.journal import flat
from composer_replication.trainer.learning.optimizers import make_optimizer
from composer_replication.trainer.learning.reference import PolicyScorer
from composer_replication.trainer.pairs.replay import collect_pairs, pairs_digest, stored_pairs, wants_replay
from composer_replication.trainer.rewards import taking_part, verdict
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.signals import Signals
from composer_replication.trainer.waiting import wait_for
from composer_replication.types import Group, Pair, Trajectory
from composer_replication.types.errors import ConfigError, ModelError


@dataclass(slots=True)
class _Step:
    """The state of the present step."""

    groups: Sequence[Group] = ()
    signals: Signals = field(default_factory=lambda: Signals(()))
    rate: float = 0.0
    began: float = 0.0
    rolled: float = 0.0


class TrlArm:
    """One arm in training. Make it with `create`, call `train` once, then `journal.summary`."""

    def __init__(
        self, context: RunContext, config: RunConfig, arm: str, shown: Phase, tokenizer: PreTrainedTokenizerBase, model: Any
    ) -> None:
        self.context, self.config, self.arm, self.shown = context, config, arm, shown
        self.folder = context.run_dir.ckpt_path / arm
        self.args = make_grpo_config(config, self.folder, cpu=model.device.type == "cpu")
        self.fingerprint = context.fingerprint(config, model)
        self.model = model
        self.renderer = ChatRenderer(tokenizer)
        self.engine = TransformersEngine(model, tokenizer)
        self.meter = context.meter()
        self.journal = context.journal(config, arm, self.meter)
        self.collector = RolloutCollector(context, config, self.engine, self.renderer, self.journal)
        self.signals = context.signal_maker(config, self.renderer, self.engine.context_window, engine=self.engine)
        self.pairs: list[Pair] = []
        self.step = _Step()
        self.resumed: Path | None = None
        self.trainer: ComposerReplicationTrainer

    @classmethod
    async def create(cls, context: RunContext, config: RunConfig, arm: str, shown: Phase, pair_logprobs: LogprobCache) -> TrlArm:
        """Build an arm from the configured policy. Without a checkpoint, also evaluate the policy and collect its pairs.

        Raises:
            ConfigError: TRL refuses one of `substrate.options`.
            CheckpointError: it is damaged, or its policy, tasks or pairs were others.
            ComposerError: whatever a part of the recipe has to say.
        """
        torch.manual_seed(config.seed)
        model, tokenizer = load_policy(config.model)
        self = cls(context, config, arm, shown, tokenizer, model)
        for left in self.folder.glob("checkpoint-*"):  # what TRL was killed over
            shutil.rmtree(left)
        self.resumed = latest_checkpoint(self.folder)
        if self.resumed is None:
            self.journal.rewind(-1)
            self.journal.log(0, await self.collector.evaluate(0))
            if wants_replay(config):
                self.pairs = await collect_pairs(context, config, self.collector, PolicyScorer(model, pair_logprobs))
            self.engine.reset()
        else:
            self._restore(read_checkpoint(self.resumed))
        if wants_replay(config):
            self.journal.teacher_totals = teacher_totals(context, arm)
        self.trainer = self._make_trainer(tokenizer)
        return self

    def train(self) -> None:
        """Take the remaining steps. TRL blocks this thread, and with it the event loop that runs in it."""
        if self.resumed is not None:
            done = int(self.resumed.name.partition("_")[2])
            self.shown.advance(done)
            if done >= self.config.steps:
                return
        with no_progress_bars():
            self.trainer.train(resume_from_checkpoint=None if self.resumed is None else str(self.resumed))

    # --- what TRL asks for --------------------------------------------------------------------------------------------------

    def rollout(self, prompts: list[Any], trainer: ComposerReplicationTrainer) -> dict[str, list[Any]]:
        """Roll out a step, as TRL's `rollout_func`. The prompts are placeholders, one for each rollout of the step."""
        version = trainer.state.global_step
        began = time.monotonic()
        groups = wait_for(self.collector.collect(version + 1, version))
        self.step = _Step(groups=groups, began=began, rolled=time.monotonic())
        trajectories = flat(groups)
        if len(trajectories) != len(prompts):
            raise ConfigError(
                f"TRL asks for {len(prompts)} completions, and the tasks of a step give {len(trajectories)}",
                fix="leave the batch sizes of substrate.options alone",
            )
        rows = [_row(t, int(self.renderer.end_of_turn_id)) for t in trajectories]
        found = {name: [row[name] for row in rows] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")}
        return found | {"verdict": [verdict(t) for t in trajectories]}

    def teach(
        self, trainer: ComposerReplicationTrainer, inputs: list[dict[str, Any]], outputs: Mapping[str, Tensor]
    ) -> StepSignals:
        """Return our advantages and hints for the rollouts that were just made."""
        del inputs, outputs
        groups = self.step.groups
        signals = self.step.signals = self.signals.make(trainer.state.global_step + 1, groups)
        trajectories = flat(groups)
        batch = self.signals.batch(groups, signals, ()) if signals.hinted else {}
        if signals.hinted:
            kept, _ = taking_part(trajectories, signals.advantages, signals.hinted)
            place = {t.trajectory_id: i for i, t in enumerate(trajectories)}
            row_of = torch.tensor([place[t.trajectory_id] for t in kept])
            batch["student_row"] = row_of[batch["student_row"]]
        advantages = torch.tensor([float("nan") if a is None else a for a in signals.advantages])
        return StepSignals(batch=batch, advantages=advantages)

    # --- what TRL tells -----------------------------------------------------------------------------------------------------

    def updated(self) -> None:
        """Forget the engine's sessions: the weights have changed."""
        self.engine.reset()
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # Ctrl-C: TRL gives the event loop no other chance
            raise asyncio.CancelledError

    def record(self, step: int, logs: Mapping[str, float]) -> None:
        """Record a step from what TRL has logged of it."""
        present, config = self.step, self.config
        metrics = {
            **self.collector.metrics(present.groups),
            **present.signals.metrics,
            **{ours: float(logs[theirs]) for theirs, ours in _NAMES.items() if logs.get(theirs) is not None},
            **self.trainer.channel_metrics,
            "optimizer/learning_rate": present.rate,
            "time/rollout_s": present.rolled - present.began,
            "time/update_s": time.monotonic() - present.rolled,
        }
        if step % config.eval.every == 0 or step == config.steps:
            metrics |= wait_for(self.collector.evaluate(step))
            self.engine.reset()
        off = self.trainer.off | self.signals.why_off(self.pairs, present.signals)
        self.journal.record_step(step, flat(present.groups), present.signals.hints, metrics, off)
        self.shown.advance()

    def adopt(self, step: int) -> None:
        """Turn what TRL has saved into a checkpoint of the run."""
        made = self.folder / f"checkpoint-{step}"
        state = {
            **self.meter.state_dict(),
            **self.collector.state_dict(),
            "fingerprint": dict(self.fingerprint),
            "pairs": pairs_digest(self.context, self.arm),
            "substrate": "trl",
        }
        self.journal.card()
        adopt_checkpoint(self.folder, made, step, {}, state)

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _restore(self, state: Mapping[str, Any]) -> None:
        assert self.resumed is not None
        pairs = pairs_digest(self.context, self.arm)
        refuse_others(self.resumed, state, fingerprint=self.fingerprint, pairs=pairs, store=self.folder / "pairs.jsonl")
        self.journal.resumed(state["step"])
        self.meter.load_state_dict(state)
        self.collector.load_state_dict(state)
        self.pairs = stored_pairs(self.context, self.arm) if wants_replay(self.config) else []

    def _make_trainer(self, tokenizer: PreTrainedTokenizerBase) -> ComposerReplicationTrainer:
        config, loss = self.config, self.config.loss
        channels = LossConfig(
            rlvr=loss.rlvr,
            hint=loss.hint,
            replay=loss.replay if self.pairs else ReplayConfig(weight=0.0),  # `why_off` says why there are none
        )
        trainer = ComposerReplicationTrainer(
            model=self.model,
            args=self.args,
            reward_funcs=[_verdicts],
            train_dataset=Dataset.from_list([{"prompt": f"placeholder {i}"} for i in range(config.rollout.groups)]),
            processing_class=tokenizer,
            rollout_func=self.rollout,
            channels=channels,
            signals=self.teach,
            pairs=self.pairs,
        )
        trainer.optimizer, trainer.lr_scheduler = make_optimizer(trainer.model, config.optimizer, config.steps)
        trainer.callback_handler.callbacks = [
            c for c in trainer.callback_handler.callbacks if type(c).__name__ != "PrinterCallback"
        ]
        trainer.add_callback(_JournalCallback(self))
        self.engine.model = trainer.model
        return trainer


class _JournalCallback(TrainerCallback):
    def __init__(self, arm: TrlArm) -> None:
        self.arm = arm

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.arm.step.rate = kwargs["optimizer"].param_groups[0]["lr"]
        grads = [p.grad for p in kwargs["model"].parameters() if p.grad is not None]
        if not all(bool(torch.isfinite(grad).all()) for grad in grads):
            raise ModelError(
                f"the gradient of step {state.global_step + 1} is not finite; the policy is as it was before the step",
                fix="lower optimizer.learning_rate in a new run, or look at the losses in metrics.jsonl",
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.arm.updated()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if "loss" in kwargs["logs"]:  # and not the totals at the end
            self.arm.record(state.global_step, kwargs["logs"])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.arm.adopt(state.global_step)


def _verdicts(completions: list[Any], verdict: list[float | None], **_: Any) -> list[float | None]:
    """Return the rewards that came with the rollouts, as TRL's reward function."""
    del completions
    return verdict


def _row(trajectory: Trajectory, filler: int) -> dict[str, list[Any]]:
    """Return a trajectory in TRL's form: `env_mask` is 0 where the policy did not sample. TRL needs at least one token."""
    ids, own, logprobs = list[int](), list[int](), list[float]()
    for turn in trajectory.turns:
        ids += [*turn.action_ids, *turn.observation_ids]
        own += [1] * len(turn.action_ids) + [0] * len(turn.observation_ids)
        logprobs += [*turn.logprobs, *(0.0 for _ in turn.observation_ids)]
    return {
        "prompt_ids": list(trajectory.prompt_ids) or [filler],
        "completion_ids": ids or [filler],
        "logprobs": logprobs or [0.0],
        "env_mask": own or [0],
    }


_NAMES = {
    "loss": "loss/total",
    "rlvr/loss": "rlvr/loss",
    "grad_norm": "optimizer/grad_norm",
    "entropy": "rlvr/entropy/mean",
    "kl": "rlvr/kl_ref/mean",
    "clip_ratio/region_mean": "rlvr/clip_frac",
    "rlvr/importance/mean": "rlvr/importance/mean",
    "rlvr/importance/max": "rlvr/importance/max",
}
"""TRL's name -> ours."""
