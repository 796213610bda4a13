"""Training of every arm of a run in turn, and the report of what they reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch

from composer_replication.config import RunConfig, resolve_arm
from composer_replication.envs.source import EnvSource
from composer_replication.loss.forward import LogprobCache
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import Phase, RunDir, Terminal
from composer_replication.observe.alarms import run_alarms
from composer_replication.observe.report import write_report
from composer_replication.observe.summary import SummaryRow
from composer_replication.observe.verdict import run_verdicts
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.checkpoints.card import FORGEABLE
from composer_replication.trainer.journal import evaluated
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.rewards import RewardFunction
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.train import StepCallback, train_arm

PRIVILEGED = (
    "Privileged information: the hint channel's self-teacher reads hints made from the project's own documentation, tool list "
    "and error messages; the replay channel's teachers are other models that answer the same states. The policy sees neither "
    "when it is evaluated. GRPO alone learns from the tests' verdict only."
)
_SHARED_GRADES = (
    "CPU seconds: those of the trainer and of the programs in its sandboxes, not of teachers. Arms share one cache of grades, so "
    "an arm does not pay again for code that an arm before it had graded."
)
_SHARED_ANSWERS = (
    "US dollars: arms share the teachers' answers, so cost/usd is what the whole run had spent so far. Calls that brought no "
    "answer and may be billed count at the most they can cost."
)

TrainArm: TypeAlias = Callable[[RunContext, RunConfig, str, Phase], Awaitable[SummaryRow]]
"""Train one arm, given its own configuration, its name, and the phase that counts its steps."""


async def train(
    config: RunConfig,
    run_dir: RunDir,
    terminal: Terminal,
    *,
    one: TrainArm | None = None,
    start_label: str = "start",
    env: EnvSource | None = None,
    reward: RewardFunction | None = None,
    callbacks: Sequence[StepCallback] = (),
) -> list[SummaryRow]:
    """Train every arm of a run that `open_run` holds, one after the other; steps already done are kept.

    The report is written after each arm.

    Args:
        one: trains an arm; None trains it in this process, with `callbacks`.

    Raises:
        ConfigError: something is wrong with the run (`RunContext.open`).
        ComposerError: any other error of a part of the recipe.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    context = RunContext.open(config, run_dir, terminal, env=env, reward=reward)
    one = one or partial(_train_here, callbacks=callbacks)
    rows: list[SummaryRow] = []
    for arm in config.arms:
        variant = resolve_arm(config, arm)
        with terminal.phase(f"train {arm}", variant.steps) as shown:
            rows.append(await one(context, variant, arm, shown))
        write_arms_report(config, run_dir, rows, start_label)
    weights = {arm: latest_checkpoint(run_dir.ckpt_path / arm) for arm in config.arms}
    print_result(run_dir, terminal, rows, weights, start_label)
    return rows


async def _train_here(
    context: RunContext, config: RunConfig, arm: str, shown: Phase, *, callbacks: Sequence[StepCallback]
) -> SummaryRow:
    with closing(LogprobCache(context.run_dir.ckpt_path / "reference.sqlite")) as pair_logprobs:
        trainer = ArmTrainer.create(context, config, arm, pair_logprobs)
        with closing(trainer):
            row = await train_arm(trainer, shown, callbacks)
    trainer.learner.dismiss()  # after an error the launcher ends them: they may wait in the middle of a step
    return row


def follow(config: RunConfig) -> None:
    """Train every arm of a run as a process that follows the first one. Raises ComposerError as `load_policy` and `Learner`."""
    if config.threads:
        torch.set_num_threads(config.threads)
    for arm in config.arms:
        follow_arm(resolve_arm(config, arm))


def follow_arm(config: RunConfig) -> None:
    """Take part in whatever the first process does with the learner of an arm, until it is done. Raises as `follow`."""
    torch.manual_seed(config.seed)
    model, _ = load_policy(config.model)
    Learner(model, config, sharded=config.substrate.shard).follow()


def write_arms_report(config: RunConfig, run_dir: RunDir, rows: Sequence[SummaryRow], start_label: str = "start") -> None:
    """Write the report of the arms that are done."""
    warnings = [*([FORGEABLE] if config.tasks.forgeable else []), *(alarms.sentence() for alarms in run_alarms(run_dir))]
    losses = [resolve_arm(config, arm).loss for arm in config.arms]
    privileged = [PRIVILEGED] if any(loss.hint.weight or loss.replay.weight for loss in losses) else []
    notes = [*warnings, *privileged, _SHARED_GRADES, *([_SHARED_ANSWERS] if config.teachers else [])]
    write_report(run_dir, title=config.name, summary_rows=_with_start(run_dir, rows, start_label), notes=notes)


def print_result(
    run_dir: RunDir,
    terminal: Terminal,
    rows: Sequence[SummaryRow],
    weights: Mapping[str, Path | None],
    start_label: str = "start",
) -> None:
    """Print the final table, the paths of weights and report, and what was learnt."""
    cells = [row.cells() for row in _with_start(run_dir, rows, start_label)]
    if any(row.rollouts for row in rows):  # a stage that reads makes none
        terminal.table("pass@1 on held-out tasks", ("arm", "pass@1", "rollouts", "tokens", "CPU s"), cells)
    for arm, path in weights.items():
        terminal.note(f"weights of {arm}: {path}")
    for alarms in run_alarms(run_dir):
        terminal.note(alarms.sentence())
    for verdict in run_verdicts(run_dir):
        terminal.note(verdict.sentence())
    terminal.note(f"report: {run_dir.report_path}")


def _with_start(run_dir: RunDir, rows: Sequence[SummaryRow], label: str) -> list[SummaryRow]:
    """Return the rows, led by the policy that all arms started from."""
    passed, se = evaluated(run_dir, rows[0].arm, first=True)
    start = SummaryRow(arm=label, pass_at_1=passed, pass_at_1_se=se, rollouts=0, tokens=0, cpu_s=0.0)
    return [start, *rows]
