"""The recipe, top to bottom: roll out, grade, hint, replay, compose the loss, step, record.

One arm after the other starts from the same policy. Everything an arm does follows from the configuration and the step number, so
a run that is killed and resumed from its last checkpoint repeats what it had lost and ends where it would have ended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from composer_replication.config import RunConfig, resolve_arm
from composer_replication.loss.forward import LogprobCache
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import Phase, RunDir, Terminal
from composer_replication.observe.report import write_report
from composer_replication.observe.summary import SummaryRow
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.checkpoint import latest_checkpoint, restore, save_checkpoint, trained_on
from composer_replication.trainer.collector import RolloutCollector, rollout_metrics
from composer_replication.trainer.cpu_clock import CpuClock
from composer_replication.trainer.engines import PolicyEngine, open_engine
from composer_replication.trainer.hint_filter import only_useful
from composer_replication.trainer.learner import Learner
from composer_replication.trainer.preflight import fingerprint
from composer_replication.trainer.replay import collect_pairs, pairs_digest, pairs_of_step, stored_pairs, teacher_costs
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.signals import SignalMaker
from composer_replication.trainer.task_shards import TaskShard
from composer_replication.types import Group, Hint, Trajectory

__all__ = [
    "LONGER",
    "PRIVILEGED",
    "ArmTrainer",
    "StepCallback",
    "TrainArm",
    "evaluation",
    "report_arms",
    "tell_result",
    "train",
    "train_arms",
    "train_steps",
    "wants_replay",
]

LONGER = {
    "head": "losses take the whole [tokens, vocabulary] logits",
    "prefix": "losses read what sequences have in common once per sequence",
}
"""What a policy that cannot be spared it (`causal_lm.fallbacks`) costs."""
PRIVILEGED = (
    "Privileged information: the hint channel's self-teacher reads hints made from the project's own documentation, tool list "
    "and error messages; the replay channel's teachers are other models that answer the same states. The policy sees neither "
    "when it is evaluated. GRPO alone learns from the tests' verdict only."
)

SHARED_VERDICTS = (
    "CPU seconds: those of the trainer and of the programs in its boxes, not of teachers. Arms share one cache of verdicts, so "
    "an arm does not pay again for code that an arm before it had graded."
)

SHARED_ANSWERS = (
    "US dollars: arms share the teachers' answers, so cost/usd is what the whole run had spent so far. Calls that brought no "
    "answer and may be billed count at the most they can cost."
)


async def train(config: RunConfig, run_dir: RunDir, terminal: Terminal, *, start_label: str = "start") -> list[SummaryRow]:
    """Train every arm of a run that `open_run` holds, and write the report; arms and steps already done are kept.

    Raises:
        ConfigError: something is wrong with the run (`RunContext.open`).
        ComposerError: whatever a part of the recipe has to say.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    return await train_arms(RunContext.open(config, run_dir, terminal), start_label, _train_here)


TrainArm: TypeAlias = Callable[[RunContext, RunConfig, str, Phase], Awaitable[SummaryRow]]
"""Trains one arm: the arm's own configuration, its name, and the phase in which every step is counted."""


async def train_arms(workshop: RunContext, start_label: str, train_arm: TrainArm) -> list[SummaryRow]:
    """Train every arm by `train_arm`, one after the other; the report is written after each."""
    config, run_dir, terminal = workshop.config, workshop.run_dir, workshop.terminal
    rows: list[SummaryRow] = []
    for arm in config.arms:
        variant = resolve_arm(config, arm)
        with terminal.phase(f"train {arm}", variant.steps) as shown:
            rows.append(await train_arm(workshop, variant, arm, shown))
        report_arms(config, run_dir, rows, start_label)
    weights = {arm: latest_checkpoint(run_dir.ckpt_path / arm) for arm in config.arms}
    tell_result(run_dir, terminal, rows, start_label, weights)
    return rows


def report_arms(config: RunConfig, run_dir: RunDir, rows: Sequence[SummaryRow], start_label: str) -> None:
    """Write the report of the arms that are done."""
    notes = [*_alarms(run_dir), PRIVILEGED, SHARED_VERDICTS, *([SHARED_ANSWERS] if config.teachers else [])]
    write_report(run_dir, title=config.name, summary_rows=_with_start(run_dir, rows, start_label), notes=notes)


def tell_result(
    run_dir: RunDir, terminal: Terminal, rows: Sequence[SummaryRow], start_label: str, weights: Mapping[str, Path | None]
) -> None:
    """The table of a run that is done, where each arm's weights are, and its report."""
    terminal.table(
        "pass@1 on held-out tasks", ("arm", "pass@1", "rollouts", "tokens", "CPU s"), _cells(run_dir, rows, start_label)
    )
    for arm, path in weights.items():
        terminal.note(f"weights of {arm}: {path}")
    for alarm in _alarms(run_dir):
        terminal.note(alarm)
    terminal.note(f"report: {run_dir.report_path}")


async def _train_here(workshop: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    with closing(LogprobCache(workshop.run_dir.ckpt_path / "reference.sqlite")) as pair_logprobs:
        return await train_steps(ArmTrainer.create(workshop, config, arm, pair_logprobs), shown)


class StepCallback(Protocol):
    """What goes on beside an arm's steps, and keeps what the arm goes on from."""

    def resume(self, trainee: ArmTrainer) -> bool:
        """In place of `ArmTrainer.resume`."""

    def stepped(self) -> Mapping[str, float]:
        """After an optimizer step: what there is to log of it."""

    def recorded(self, metrics: Mapping[str, float]) -> None:
        """After the step, of which these are the metrics, is in the run's files."""


async def train_steps(trainee: ArmTrainer, shown: Phase, beside: StepCallback | None = None) -> SummaryRow:
    """Train one arm from where it is to its last step."""
    workshop, config, actor, learner = trainee.workshop, trainee.config, trainee.actor, trainee.learner
    for what, why in learner.fallbacks.items():
        workshop.terminal.note(f"{trainee.arm}: {LONGER[what]}: {why}")
    if trainee.resume() if beside is None else beside.resume(trainee):
        pairs = stored_pairs(workshop, trainee.arm) if wants_replay(config) else []
    else:
        await trainee.evaluate()
        pairs = await collect_pairs(workshop, config, actor, learner) if wants_replay(config) else []
        trainee.save()
    if wants_replay(config):
        trainee.teacher_costs = teacher_costs(workshop)
    shown.advance(learner.version)
    while learner.version < config.steps:
        step, began = learner.version + 1, time.monotonic()
        groups = await actor.practise(step, learner.version)
        rolled = time.monotonic()
        signals = trainee.maker.signals(step, groups)
        taken = pairs_of_step(pairs, step, config.loss.replay.pairs_per_step)
        result = learner.update(trainee.maker.batch(groups, signals, taken))
        outer = {} if beside is None else beside.stepped()
        trainee.engine.reset()
        times = {"time/rollout_s": rolled - began, "time/update_s": time.monotonic() - rolled}
        learnt = {} if actor.curriculum is None else actor.curriculum.metrics()
        metrics = {**rollout_metrics(groups), **learnt, **signals.metrics, **result.metrics, **outer, **times}
        off = dict(result.off) | trainee.maker.why_off(pairs, signals)
        if step % config.eval.every == 0 or step == config.steps:
            metrics |= await actor.evaluate(learner.version)
        trainee.record(step, groups, signals.hints, metrics, off)
        if beside is not None:
            beside.recorded(metrics)
        shown.advance()
        if step % config.checkpoint_every == 0 or step == config.steps:
            trainee.save()
    return trainee.summary()


@dataclass(slots=True)
class ArmTrainer:
    """One arm in training: its policy, its engine and what it spent."""

    workshop: RunContext
    config: RunConfig
    arm: str
    learner: Learner
    engine: PolicyEngine
    renderer: ChatRenderer
    actor: RolloutCollector
    maker: SignalMaker
    spending: CpuClock
    fingerprint: Mapping[str, str]
    teacher_costs: Mapping[str, float] = field(default_factory=dict)
    """Of the replay, once it is done."""

    @classmethod
    def create(
        cls, workshop: RunContext, config: RunConfig, arm: str, pair_logprobs: LogprobCache, share: TaskShard | None = None
    ) -> ArmTrainer:
        """From the configured policy; `share` is as the actor takes it."""
        torch.manual_seed(config.seed)
        model, tokenizer = load_policy(config.model)
        pairs = config.loss.replay.pairs if config.loss.replay.weight > 0 else None
        made_of = fingerprint(model, [*workshop.train, *workshop.held_out], pairs)
        learner = Learner(model, config, pair_logprobs)
        renderer = ChatRenderer(tokenizer)
        engine = open_engine(config, learner, tokenizer, arm, workshop.run_dir.ckpt_path / arm / "serving")
        actor = RolloutCollector(workshop, config, arm, engine, renderer, share)
        maker = SignalMaker(
            config=config,
            sources=workshop.hint_sources(config),
            renderer=renderer,
            context_window=engine.context_window,
            kl=learner.kl_to_reference,
            useful=partial(only_useful, learner=learner),
        )
        return cls(workshop, config, arm, learner, engine, renderer, actor, maker, CpuClock(workshop.sandbox), made_of)

    def resume(self) -> bool:
        """Go back to the arm's last checkpoint, or, when there is none, to nothing. Whether there was one.

        Raises:
            CheckpointError: it is damaged, or its policy, tasks or pairs were others. Nothing is forgotten then.
        """
        pairs = pairs_digest(self.workshop, self.arm)
        state = restore(self.checkpoints, self.learner, fingerprint=self.fingerprint, pairs=pairs)
        if state is None:
            self.workshop.run_dir.truncate_after(self.arm, -1)
            return False
        self.go_on(state)
        return True

    def counters(self) -> dict[str, Any]:
        """What the next step depends on beside the learner, plain JSON."""
        return {
            "rollouts": self.actor.rollouts,
            "tokens": self.actor.tokens,
            "curriculum": None if self.actor.curriculum is None else self.actor.curriculum.state_dict(),
            "cpu_s": self.spending.cpu_s(),
        }

    def go_on(self, counters: Mapping[str, Any]) -> None:
        """From where the learner is, with what `counters` said there: what the run's files say of later steps is forgotten."""
        self.workshop.run_dir.truncate_after(self.arm, self.learner.version)
        self.actor.rollouts, self.actor.tokens = counters["rollouts"], counters["tokens"]
        if self.actor.curriculum is not None:
            self.actor.restore(counters["curriculum"])
        self.spending.start_from(counters["cpu_s"])
        self.workshop.terminal.note(f"{self.arm}: resumed at step {self.learner.version} of {self.config.steps}")

    @property
    def checkpoints(self) -> Path:
        return self.workshop.run_dir.ckpt_path / self.arm

    async def evaluate(self) -> None:
        """Where the arm starts from, logged as step 0."""
        metrics = await self.actor.evaluate(0) | self._spent()
        self.workshop.run_dir.log_metrics(self.arm, 0, metrics)

    def record(
        self, step: int, groups: Sequence[Group], hints: Sequence[Hint], metrics: dict[str, float], off: Mapping[str, str]
    ) -> None:
        """Files first, then the terminal."""
        metrics |= self._spent()
        self.workshop.run_dir.write_trajectories(self.arm, step, _flat(groups))
        self.workshop.run_dir.write_hints(self.arm, step, hints)
        self.workshop.run_dir.log_metrics(self.arm, step, metrics)
        self.workshop.terminal.step(self.arm, step, self.config.steps, metrics, off)

    def save(self) -> None:
        """A checkpoint of everything the next step depends on."""
        state = {**self.counters(), **trained_on(self.fingerprint, pairs_digest(self.workshop, self.arm))}
        save_checkpoint(self.checkpoints, self.learner.version, self.learner, self.renderer.tokenizer, state)

    def summary(self) -> SummaryRow:
        """The arm's last evaluation and what it took."""
        passed, se = evaluation(self.workshop.run_dir, self.arm, first=False)
        return SummaryRow(
            arm=self.arm,
            pass_at_1=passed,
            pass_at_1_se=se,
            rollouts=self.actor.rollouts,
            tokens=self.actor.tokens,
            cpu_s=self.spending.cpu_s(),
        )

    def _spent(self) -> dict[str, float]:
        return {
            "rollout/total": float(self.actor.rollouts),
            "rollout/tokens_total": float(self.actor.tokens),
            "cost/cpu_s": self.spending.cpu_s(),
            **self.teacher_costs,
        }


def _flat(groups: Sequence[Group]) -> list[Trajectory]:
    return [t for g in groups for t in g.trajectories]


def wants_replay(config: RunConfig) -> bool:
    """Whether the replay channel has a source of pairs."""
    replay = config.loss.replay
    return replay.weight > 0 and (bool(config.teachers) or replay.pairs is not None)


def evaluation(run_dir: RunDir, arm: str, *, first: bool) -> tuple[float, float]:
    """pass@1 and its standard error at the arm's first or last evaluation; NaN when there is none."""
    found = [m.values for m in run_dir.read_metrics() if m.arm == arm and "eval/pass_at_1" in m.values]
    if not found:
        return float("nan"), float("nan")
    values = found[0 if first else -1]
    return values["eval/pass_at_1"], values["eval/pass_at_1_se"]


def _alarms(run_dir: RunDir) -> list[str]:
    """One line per arm that passed impossible tasks."""
    counts: Counter[str] = Counter()
    for line in run_dir.read_metrics():
        counts[line.arm] += int(line.values.get("cheat/alarms", 0))
    return [
        f"CHEAT ALARM: {count} rollouts of {arm} passed an impossible task; read their trajectories before you trust its rewards."
        for arm, count in (+counts).items()
    ]


def _with_start(run_dir: RunDir, rows: Sequence[SummaryRow], label: str) -> list[SummaryRow]:
    """The rows, led by the policy all arms started from."""
    passed, se = evaluation(run_dir, rows[0].arm, first=True)
    start = SummaryRow(arm=label, pass_at_1=passed, pass_at_1_se=se, rollouts=0, tokens=0, cpu_s=0.0)
    return [start, *rows]


def _cells(run_dir: RunDir, rows: Sequence[SummaryRow], label: str) -> list[tuple[str, ...]]:
    return [row.cells() for row in _with_start(run_dir, rows, label)]
