"""A trial of a run: two rollouts and an update by them, made as the run makes them, in a folder that is thrown away."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.utils._pytree import tree_leaves

from composer_replication.config import RunConfig
from composer_replication.envs.source import AnyTask, EnvSource
from composer_replication.loss.forward import LogprobCache
from composer_replication.loss.forward.adapters import policy_weights
from composer_replication.observe import RunDir, Terminal
from composer_replication.teachers import ReplayPlan, Teacher, plan
from composer_replication.teachers.gate_steps import steps_of
from composer_replication.teachers.gating import gate_of, split_teachers
from composer_replication.traces import states_from_trajectories
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.ask_teachers import states_with_evidence
from composer_replication.trainer.coding_tasks import CodingTasks
from composer_replication.trainer.learning.reference import PolicyScorer
from composer_replication.trainer.planning.prompts import prompt_lengths
from composer_replication.trainer.run_context import RunContext
from composer_replication.types import Trajectory, to_json

SIBLINGS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What two rollouts and an update took, and what teachers would be asked about them."""

    task_id: str
    """The task with the longest prompt, where prompts are known."""
    prompt_tokens: int
    trajectories: Sequence[Trajectory]
    rollout_s: float
    """Seconds of both rollouts, made side by side."""
    update_s: float
    checkpoint_bytes: int
    trajectory_bytes: float
    """Mean bytes of a trajectory in the run's files."""
    teachers: ReplayPlan | None
    """Cost of asking about both trajectories; None without teachers."""

    @property
    def sampled_tokens(self) -> float:
        """Return the mean tokens that a trajectory sampled."""
        return sum(t.num_sampled_tokens() for t in self.trajectories) / len(self.trajectories)


async def try_run(config: RunConfig, arm: str, terminal: Terminal, env: EnvSource | None = None) -> Trial:
    """Load the policy, let it work twice on a task, and take an update by both; nothing of it is kept.

    Args:
        config: of the arm.
        env: as for `RunContext.open`.

    Raises:
        ConfigError: something is wrong with the run, or a task's prompt leaves no room for a turn.
        ComposerError: whatever a part of the recipe has to say.
    """
    config = _apart(_without_judge(config))
    with TemporaryDirectory(prefix="composer-trial-") as folder:
        context = RunContext.open(config, RunDir.create(Path(folder) / config.name), terminal, proven=True, env=env)
        with closing(ArmTrainer.create(context, config, arm, LogprobCache())) as trainer:
            task = _longest(context, trainer)
            began = time.monotonic()
            (group,) = await trainer.collector.try_out(task, SIBLINGS)
            rollout_s = time.monotonic() - began
            signals = trainer.signals.make(1, [group])
            signals = dataclasses.replace(signals, advantages=(1.0, -1.0))  # whatever the tests say, both teach
            batch = trainer.signals.batch([group], signals, [])
            teachers = _teachers(trainer, group.trajectories)
            trainer.engine.rest()
            began = time.monotonic()
            trainer.learner.update(batch)
            return Trial(
                task_id=task.spec.task_id,
                prompt_tokens=len(group.trajectories[0].prompt_ids),
                trajectories=group.trajectories,
                rollout_s=rollout_s,
                update_s=time.monotonic() - began,
                checkpoint_bytes=_checkpoint_bytes(trainer),
                trajectory_bytes=sum(len(json.dumps(to_json(t))) for t in group.trajectories) / len(group.trajectories),
                teachers=teachers,
            )


def _without_judge(config: RunConfig) -> RunConfig:
    """Return a run that asks no teacher for hints: a trial costs nothing."""
    hint = config.loss.hint
    free = hint.model_copy(update={"generators": tuple(name for name in hint.generators if name != "judge")})
    return config.model_copy(update={"loss": config.loss.model_copy(update={"hint": free})})


def _apart(config: RunConfig) -> RunConfig:
    """Return a run whose weights stay in its own folder."""
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"server_weights": None})})


def _longest(context: RunContext, trainer: ArmTrainer) -> AnyTask:
    """Return the task to train on that has the longest prompt; the first one of another environment."""
    if not isinstance(context.source, CodingTasks):
        return context.train[0]
    lengths = prompt_lengths(context.source, trainer.renderer)
    return max(context.source.train, key=lambda task: lengths[task.spec.task_id])


def _teachers(trainer: ArmTrainer, trajectories: Sequence[Trajectory]) -> ReplayPlan | None:
    """Plan what asking the run's teachers about trajectories costs."""
    config = trainer.config
    replay, teachers = config.loss.replay, [Teacher.of(teacher) for teacher in config.teachers]
    if replay.weight == 0 or not teachers:
        return None
    states = states_from_trajectories(trajectories)
    reader = PolicyScorer(trainer.learner.policy, trainer.learner.pair_logprobs)
    known = states_with_evidence(states, trajectories, config, trainer.renderer, reader)
    first, second = split_teachers(teachers, replay.gate)
    return plan(steps_of(known), first=first, second=second, gate=gate_of(replay.gate, config.seed), reach=replay.gate.reach)


def _checkpoint_bytes(trainer: ArmTrainer) -> int:
    """Return the bytes of the tensors in a checkpoint."""
    held = [policy_weights(trainer.learner.policy), trainer.learner.snapshot().state]
    tensors = [value for value in tree_leaves(held) if isinstance(value, torch.Tensor)]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
