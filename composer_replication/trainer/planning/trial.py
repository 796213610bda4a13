"""A trial of a run: a few rollouts and updates by them, made as the run makes them, in a folder that is thrown away."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import torch
from torch.utils._pytree import tree_leaves

from composer_replication.config import RunConfig
from composer_replication.envs.source import AnyTask, EnvSource
from composer_replication.loss.forward import LogprobCache
from composer_replication.loss.forward.adapters import policy_weights
from composer_replication.observe import RunDir, Terminal, trajectory_row
from composer_replication.rollouts.protocol import AsyncEngine
from composer_replication.rollouts.serving.weights import PREFIX
from composer_replication.teachers import ReplayPlan, Teacher, plan
from composer_replication.teachers.gate_steps import steps_of
from composer_replication.teachers.gating import gate_of, split_teachers
from composer_replication.traces import states_from_trajectories
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.ask_teachers import states_with_evidence
from composer_replication.trainer.coding_tasks import CodingTasks
from composer_replication.trainer.engines.own_server import LOG, SERVING
from composer_replication.trainer.learning.followers import launched_processes
from composer_replication.trainer.planning.prompts import prompt_lengths
from composer_replication.trainer.run_context import RunContext
from composer_replication.types import Trajectory
from composer_replication.types.errors import ComposerError

FEWEST = 2
"""Rollouts of a trial by fewer processes than that; more processes make a rollout each, so that an update has work for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Time and size of some rollouts and an update by them once everything is running, and what teachers would be asked."""

    task_id: str
    """The task with the longest prompt, where prompts are known."""
    prompt_tokens: int
    trajectories: Sequence[Trajectory]
    rollout_s: float
    """Seconds of all its rollouts, made side by side."""
    update_s: float
    """Seconds of an update by all."""
    optimizer_s: float
    """Seconds of those that its `updates` optimizer steps take, however many rollouts there are."""
    updates: int
    load_s: float
    """Seconds that a step spends on bringing the weights to a server, and on its sleep where it shares the GPU."""
    checkpoint_bytes: int
    weights_bytes: int
    """Size of the weights on their way to a server; 0 without one."""
    trajectory_bytes: float
    """Mean bytes of a trajectory in the run's files."""
    teachers: ReplayPlan | None
    """Cost of asking about its trajectories; None without teachers."""

    @property
    def sampled_tokens(self) -> float:
        """Return the mean tokens that a trajectory sampled."""
        return sum(t.num_sampled_tokens() for t in self.trajectories) / len(self.trajectories)


async def try_run(config: RunConfig, arm: str, terminal: Terminal, env: EnvSource | None = None) -> Trial:
    """Load the policy, let it work on a task, twice or once for each process that a launcher has started, and take updates by all
    trajectories; nothing of it is kept but the log of a server when the trial fails. The other processes `follow_arm` meanwhile.

    Args:
        config: of the arm.
        env: as for `RunContext.open`.

    Raises:
        ConfigError: something is wrong with the run, or a task's prompt leaves no room for a turn.
        ComposerError: whatever a part of the recipe has to say.
    """
    config = _apart(_without_judge(config))
    with _folder(Path(config.name, "ckpt", arm, SERVING, LOG), terminal) as folder:
        context = RunContext.open(config, RunDir.create(folder / config.name), terminal, proven=True, env=env)
        with closing(ArmTrainer.create(context, config, arm, LogprobCache())) as trainer:
            trial = await _try(trainer)
    trainer.learner.dismiss()
    return trial


async def _try(trainer: ArmTrainer) -> Trial:
    """Take a step twice over, so that what only the first one does is not measured: a server's start and first weights, memory
    that is first allocated."""
    task = _longest(trainer)
    await _load(trainer)
    began = time.monotonic()
    (group,) = await trainer.collector.try_out(task, max(FEWEST, launched_processes()))
    rollout_s = time.monotonic() - began
    rest_s = _seconds(trainer.engine.rest)
    signals = trainer.signals.make(1, [group])
    alternating = tuple(1.0 if number % 2 == 0 else -1.0 for number in range(len(group.trajectories)))
    signals = dataclasses.replace(signals, advantages=alternating)  # whatever the tests say, all teach
    batch = trainer.signals.batch([group], signals, [])
    teachers = _teachers(trainer, group.trajectories)
    trainer.learner.update(batch)
    trainer.learner.step_logprobs.clear()
    began = time.monotonic()
    learned = trainer.learner.update(batch)
    update_s = time.monotonic() - began
    trainer.engine.reset()
    return Trial(
        task_id=task.spec.task_id,
        prompt_tokens=len(group.trajectories[0].prompt_ids),
        trajectories=group.trajectories,
        rollout_s=rollout_s,
        update_s=update_s,
        optimizer_s=learned.metrics["time/optimizer_s"],
        updates=int(learned.metrics["optimizer/updates"]),
        load_s=rest_s + await _load(trainer),
        checkpoint_bytes=_checkpoint_bytes(trainer),
        weights_bytes=_weights_bytes(trainer),
        trajectory_bytes=sum(len(json.dumps(trajectory_row(t))) for t in group.trajectories) / len(group.trajectories),
        teachers=teachers,
    )


async def _load(trainer: ArmTrainer) -> float:
    """Bring the policy's weights to a server where there is one, and return the seconds that it took."""
    began = time.monotonic()
    if isinstance(trainer.engine, AsyncEngine):
        await trainer.engine.prepare()
    return time.monotonic() - began


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


@contextmanager
def _folder(log: Path, terminal: Terminal) -> Iterator[Path]:
    """Make a folder for a trial, and remove it afterwards. After an error `log`, a path in it, stays where it is, and the
    terminal says so."""
    folder = Path(mkdtemp(prefix="composer-trial-"))
    kept = None
    try:
        yield folder
    except ComposerError:
        if (folder / log).is_file():
            kept = folder / log
            terminal.note(f"the server's log is kept: {kept}")
        raise
    finally:
        _remove(folder, kept)


def _remove(folder: Path, kept: Path | None) -> None:
    """Remove a folder with all that is in it but one file."""
    if kept is None or folder not in kept.parents:
        shutil.rmtree(folder)
        return
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            _remove(path, kept)
        elif path != kept:
            path.unlink()


def _without_judge(config: RunConfig) -> RunConfig:
    """Return a run that asks no teacher for hints: a trial costs nothing."""
    hint = config.loss.hint
    free = hint.model_copy(update={"generators": tuple(name for name in hint.generators if name != "judge")})
    return config.model_copy(update={"loss": config.loss.model_copy(update={"hint": free})})


def _apart(config: RunConfig) -> RunConfig:
    """Return a run whose weights stay in its own folder."""
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"server_weights": None})})


def _longest(trainer: ArmTrainer) -> AnyTask:
    """Return the task to train on that has the longest prompt; the first one of another environment."""
    source = trainer.context.source
    if not isinstance(source, CodingTasks):
        return source.train[0]
    lengths = prompt_lengths(source.train, trainer.config, trainer.renderer)
    return max(source.train, key=lambda task: lengths[task.spec.task_id])


def _teachers(trainer: ArmTrainer, trajectories: Sequence[Trajectory]) -> ReplayPlan | None:
    """Plan what asking the run's teachers about trajectories costs."""
    config = trainer.config
    replay, teachers = config.loss.replay, [Teacher.of(teacher) for teacher in config.teachers]
    if replay.weight == 0 or not teachers:
        return None
    states = states_from_trajectories(trajectories)
    known = states_with_evidence(states, trajectories, config, trainer.renderer, trainer.learner)
    first, second = split_teachers(teachers, replay.gate)
    return plan(steps_of(known), first=first, second=second, gate=gate_of(replay.gate, config.seed), reach=replay.gate.reach)


def _weights_bytes(trainer: ArmTrainer) -> int:
    """Return the bytes of the files that a server was given."""
    folder = trainer.checkpoints / SERVING
    return sum(path.stat().st_size for path in folder.glob(f"{PREFIX}*/**/*") if path.is_file())


def _checkpoint_bytes(trainer: ArmTrainer) -> int:
    """Return the bytes of the tensors in a checkpoint."""
    saved = trainer.learner.snapshot()
    held = [saved.weights or policy_weights(trainer.learner.policy), saved.state]
    tensors = [value for value in tree_leaves(held) if isinstance(value, torch.Tensor)]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
