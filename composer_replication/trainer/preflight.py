"""Checks of a run before it starts: its arms, tasks, interpreter and teachers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from composer_replication.config import RunConfig, SandboxConfig, resolve_arm
from composer_replication.envs.oracle import sound_tasks
from composer_replication.envs.source import AnyTask, EnvSource
from composer_replication.loss.forward import weights_digest
from composer_replication.replaysim import DJNormalizer
from composer_replication.sandbox import Limits, Sandbox
from composer_replication.tasks.interpreters import interpreters_of
from composer_replication.tasks.store import Task
from composer_replication.tasks.strength import load_strong_tasks
from composer_replication.tasks.wording import worded
from composer_replication.teachers import Teacher, check_teachers
from composer_replication.teachers.gating import split_teachers
from composer_replication.trainer.engines.own_server import check_server
from composer_replication.trainer.pairs.pairs_file import file_digest, read_file
from composer_replication.trainer.teacher_kl import scoring_teachers
from composer_replication.types.errors import ConfigError

NO_SOURCE = "the run has no teachers, loss.replay.pairs or loss.replay.reattempts"
"""Why the replay channel has nothing to learn from."""
_ONCE = "carries out the calls of a rollout again, and an environment of [env] may not come back to where it stood"


@dataclass(frozen=True, slots=True)
class Checked:
    """The tasks of a run that can start."""

    train: Sequence[Task]
    held_out: Sequence[Task]
    pythons: Mapping[str, Path]
    """By task id: the interpreter that runs its tests."""


def check_run(config: RunConfig) -> Checked:
    """Check every arm, load the tasks, and check for what would fail later.

    Raises:
        ConfigError: an arm sets what it cannot, asks for more tasks than there are, for a teacher that cannot be asked or for
            pairs that are none, or a task is both trained on and held out.
        TaskError: a folder holds no tasks or only forgeable ones, one of them is damaged or cannot be worded as
            `tasks.instruction` asks, or the interpreter they were built with is gone.
        SandboxError: the machine of a remote sandbox cannot be reached.
        MissingExtraError: a server is to be started, and there is no vLLM.
    """
    folders = [config.tasks.folder] + ([] if config.tasks.held_out is None else [config.tasks.held_out])
    forgeable = config.tasks.forgeable
    loaded = [worded(load_strong_tasks(folder, forgeable=forgeable), config.tasks.instruction) for folder in folders]
    train, held_out = _split(loaded[0], config.tasks.held_out_share) if len(loaded) == 1 else loaded
    held_out = [task for task in held_out if not task.spec.impossible]
    both = {t.spec.task_id for t in train} & {t.spec.task_id for t in held_out}
    if both:
        raise ConfigError(
            f"task {min(both)} is in tasks.train and in tasks.held_out", fix="keep every task in one of the two folders"
        )
    pythons: dict[str, Path] = {}
    for part in (train, held_out):
        pythons |= interpreters_of(part, config.tasks.python, config.sandbox.kind)
    train, held_out = ([task for task in part if task.spec.task_id in pythons] for part in (train, held_out))
    _check_arms(config, len(train), "tasks.train")
    return Checked(train, held_out, pythons)


def check_source(config: RunConfig, source: EnvSource) -> None:
    """Check every arm against another environment than our own tasks.

    Raises:
        ConfigError: two tasks have one id, the substrate trains on our own tasks alone, or an arm asks for more tasks than there
            are, for a teacher that cannot be asked, or for re-attempts, or fine-tuning asks for some.
    """
    names = [t.spec.task_id for t in (*source.train, *source.held_out)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the environment has two tasks called {twice!r}", fix="give every task a unique id")
    if config.substrate.type not in ("local", "trl"):
        raise ConfigError(
            f"substrate.type = {config.substrate.type} trains on the tasks of tasks.train alone",
            fix="set substrate.type = local or trl",
        )
    if config.sft.enabled and config.sft.reattempts:
        raise ConfigError(f"sft.reattempts {_ONCE}", fix="set sft.reattempts = false, or train on tasks.train")
    for arm in config.arms:
        if resolve_arm(config, arm).loss.replay.reattempts > 0:
            raise ConfigError(
                f"arm {arm}: loss.replay.reattempts {_ONCE}",
                fix="set loss.replay.reattempts = 0, or train on tasks.train",
            )
    _check_arms(config, len(source.train), "the environment")


def _check_arms(config: RunConfig, tasks: int, where: str) -> None:
    for arm in config.arms:
        variant = resolve_arm(config, arm)
        if tasks < variant.rollout.groups:
            raise ConfigError(
                f"arm {arm}: rollout.groups is {variant.rollout.groups}, but {where} has {tasks} tasks",
                fix="lower rollout.groups or " + ("build more tasks" if where == "tasks.train" else "give it more tasks"),
            )
        if variant.rollout.starts_server:
            check_server(variant)
        if variant.loss.replay.weight > 0 and variant.teachers:
            _check_teachers(arm, variant)
        for teacher in scoring_teachers(variant):
            teacher.key()
        if variant.loss.replay.judge and not variant.teachers:
            raise ConfigError(
                f"arm {arm}: loss.replay.judge asks the first of [[teachers]], and there is none",
                fix="add a [[teachers]] table, or set loss.replay.judge = false",
            )
        if variant.loss.replay.weight > 0 and variant.loss.replay.pairs is not None:
            read_file(variant.loss.replay.pairs)


def _check_teachers(arm: str, config: RunConfig) -> None:
    """Check that the teachers can be asked and paid, and can agree."""
    replay, teachers = config.loss.replay, [Teacher.of(t) for t in config.teachers]
    check_teachers(teachers, replay.max_total_usd)
    split_teachers(teachers, replay.gate)
    if replay.normalize.enabled:
        DJNormalizer.of(replay.normalize)
    families = len({t.vote_family for t in teachers})
    if families < replay.agreement_threshold:
        raise ConfigError(
            f"arm {arm}: loss.replay.agreement_threshold is {replay.agreement_threshold}, but the teachers are of "
            + (f"{families} families" if families > 1 else "one family"),
            fix="lower it, or name teachers of more families",
        )
    costly = [t.name for t in teachers if t.price(1, 1)]
    if costly and replay.max_total_usd == 0:
        raise ConfigError(
            f"arm {arm}: teacher {costly[0]!r} has a price and loss.replay.max_total_usd is 0",
            fix="set loss.replay.max_total_usd to what may be spent",
        )


def _split(tasks: Sequence[Task], share: float) -> tuple[list[Task], list[Task]]:
    """Split tasks into training and held-out ones; the ids that hash lowest are held out, so that new tasks move few."""
    possible = [task for task in tasks if not task.spec.impossible]
    by_hash = sorted(possible, key=lambda task: hashlib.sha256(task.spec.task_id.encode()).hexdigest())
    kept = {task.spec.task_id for task in by_hash[: math.ceil(share * len(tasks))]}
    return [t for t in tasks if t.spec.task_id not in kept], [t for t in tasks if t.spec.task_id in kept]


def limits_of(config: SandboxConfig, task: Task) -> Limits:
    """Return the limits of one sandbox of a task."""
    return Limits(
        wall_s=task.spec.test_timeout_s,
        cpu_s=task.spec.test_timeout_s,
        memory_mb=config.memory_mb,
        processes=config.processes,
        disk_mb=config.disk_mb,
    )


def prove_solutions(config: RunConfig, checked: Checked, sandbox: Sandbox) -> Checked:
    """Return what is left of a run's tasks when those are left out that are not sound here (`envs.oracle.sound_tasks`), graded as
    the run will grade.

    Raises:
        ConfigError: an arm asks for more tasks than are left.
        TaskError: none is left to train on, or of those held out.
        SandboxError: the sandbox broke.
    """
    sound = partial(sound_tasks, pythons=checked.pythons, sandbox=sandbox, limits=partial(limits_of, config.sandbox))
    train, held_out = sound(checked.train), sound(checked.held_out)
    if len(train) < len(checked.train):
        _check_arms(config, len(train), "tasks.train")
    return Checked(train, held_out, checked.pythons)


def fingerprint(policy: PreTrainedModel, tasks: Sequence[AnyTask], pairs: Path | None = None) -> dict[str, str]:
    """Return SHA-256 digests of the starting weights, of the tasks and of the file of pairs that is trained on, by name."""
    of_file = {} if pairs is None else {"pairs in loss.replay.pairs": file_digest(pairs)}
    return {"starting weights": weights_digest(policy), "tasks": digest_of(tasks), **of_file}


def digest_of(tasks: Sequence[AnyTask]) -> str:
    """Return a SHA-256 digest of tasks, in their order."""
    manifests = hashlib.sha256()
    for task in tasks:
        manifests.update(task.digest())
    return manifests.hexdigest()
