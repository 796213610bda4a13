"""Train from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from composer_replication.api.runs import Run
from composer_replication.config import RunConfig, config_from, load_config
from composer_replication.envs.source import EnvSource
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.verdict import refuse_failed, run_verdicts
from composer_replication.recipes.substrates import check_substrate, train_on
from composer_replication.trainer.learning.followers import is_follower
from composer_replication.trainer.learning.launcher import check_launcher
from composer_replication.trainer.open_run import open_run
from composer_replication.trainer.report import TrainArm, follow
from composer_replication.trainer.report import train as train_arms
from composer_replication.trainer.rewards import RewardFunction
from composer_replication.trainer.stages.before import EarlierStage, started_from, write_whole
from composer_replication.trainer.stages.order import BEFORE_RL
from composer_replication.trainer.stages.pretrain import PRETRAIN, train_on_text
from composer_replication.trainer.stages.sft import SFT, train_imitation
from composer_replication.trainer.train import StepCallback
from composer_replication.trainer.waiting import wait_for
from composer_replication.types.errors import ConfigError


def train(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    *,
    env: EnvSource | None = None,
    reward: RewardFunction | None = None,
    callbacks: Sequence[StepCallback] = (),
    resume: bool = False,
    overrides: Sequence[str] = (),
    terminal: Terminal | None = None,
) -> Run:
    """Train every arm of a run and return the run. Works in a notebook, too.

    Args:
        config: a run file, or what one holds as nested dictionaries; paths in these are relative to the working directory.
        env: what to train on instead of what the run names (`envs.EnvSource`).
        reward: scores each finished trajectory in place of its environment; 1.0 and more counts as passed.
        callbacks: hooks after every step (`trainer.train.StepCallback`).
        resume: continue from the last checkpoint; a new run is started when there is none.
        overrides: `--dotted.key=value` words, as on the command line; only with a run file.

    Raises:
        ConfigError: something is wrong with the run, or its directory holds another one.
        MissingExtraError: what the substrate needs is not installed.
        NothingLearntError: `strict` is true, and an arm learnt nothing or got worse. Weights and report are written.
        ComposerError: whatever a part of the recipe has to say.
    """
    resolved = resolved_config(config, overrides, env_given=env is not None)
    if resolved.diloco.enabled:
        raise ConfigError("diloco.enabled = true: this run is one of replicas", fix="start it by `composer diloco run`")
    check_substrate(resolved)
    check_launcher(resolved)
    resolved = started_from(resolved, BEFORE_RL)
    if is_follower():
        follow(resolved)
        return Run(RunDir(resolved.out / resolved.name))
    with open_run(resolved, resume=resume) as run_dir:
        shown = _shown(terminal, run_dir)
        wait_for(train_on(resolved, run_dir, shown, env=env, reward=reward, callbacks=callbacks))
        _judge(resolved, run_dir)
    return Run(run_dir)


def pretrain(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    *,
    env: EnvSource | None = None,
    resume: bool = False,
    overrides: Sequence[str] = (),
    terminal: Terminal | None = None,
) -> Run:
    """Train the policy of a run on text, as its section `[pretrain]` says, and return that run, `OUT/NAME/pretrain`.

    `sft` and `train` with the same configuration then start from it. Arguments are those of `train`; text that holds what the
    tasks of `env`, or of the run, delete is left out.

    Raises:
        ConfigError: `pretrain.enabled` is false, or something is wrong with the run or with its text.
        ComposerError: as `train`.
    """
    resolved = resolved_config(config, overrides, env_given=env is not None)
    return _stage(PRETRAIN, resolved, train_on_text, env=env, resume=resume, terminal=terminal)


def sft(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    *,
    env: EnvSource | None = None,
    reward: RewardFunction | None = None,
    callbacks: Sequence[StepCallback] = (),
    resume: bool = False,
    overrides: Sequence[str] = (),
    terminal: Terminal | None = None,
) -> Run:
    """Fine-tune the policy of a run on demonstrations, as its section `[sft]` says, and return that run, `OUT/NAME/sft`.

    It starts from what `pretrain` wrote, where the run has that stage, and `train` with the same configuration then starts from
    it. Arguments are those of `train`; `reward` also decides which of the policy's own rollouts become demonstrations.

    Raises:
        ConfigError: `sft.enabled` is false, or something is wrong with the run or with its demonstrations.
        ComposerError: as `train`.
    """
    resolved = resolved_config(config, overrides, env_given=env is not None)
    one = partial(train_imitation, callbacks=callbacks)
    return _stage(SFT, resolved, one, env=env, reward=reward, resume=resume, terminal=terminal)


def _stage(
    stage: EarlierStage,
    config: RunConfig,
    one: TrainArm,
    *,
    env: EnvSource | None,
    reward: RewardFunction | None = None,
    resume: bool,
    terminal: Terminal | None,
) -> Run:
    """Train a stage before RL, from what the stages before it have written."""
    resolved = stage.run_of(started_from(config, BEFORE_RL[: BEFORE_RL.index(stage)]))
    check_launcher(resolved)
    if is_follower():
        follow(resolved)
        return Run(RunDir(resolved.out / resolved.name))
    with open_run(resolved, resume=resume) as run_dir:
        wait_for(train_arms(resolved, run_dir, _shown(terminal, run_dir), one=one, env=env, reward=reward))
        write_whole(resolved)
        _judge(resolved, run_dir)
    return Run(run_dir)


def _shown(terminal: Terminal | None, run_dir: RunDir) -> Terminal:
    """Return the terminal, which writes to the run's events."""
    shown = Terminal() if terminal is None else terminal
    shown.on_event = run_dir.log_event
    return shown


def _judge(config: RunConfig, run_dir: RunDir) -> None:
    """Raise NothingLearntError where the run is strict and an arm has failed."""
    if config.strict:
        refuse_failed([verdict.arm for verdict in run_verdicts(run_dir) if verdict.failed])


def resolved_config(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig, overrides: Sequence[str] = (), *, env_given: bool = False
) -> RunConfig:
    """Return the run that a run file, or what one holds, describes. Raises ConfigError."""
    if isinstance(config, str | os.PathLike):
        return load_config(Path(config), overrides, env_given=env_given)
    if overrides:
        raise ConfigError("overrides are given without a run file", fix="change the values in `config`")
    return config if isinstance(config, RunConfig) else config_from(config, env_given=env_given)
