"""The record of one arm: metrics, trajectories, hints, spend and summary. Every substrate writes through it."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_replication.observe import RunDir, Terminal, mean_and_se, pass_at_1
from composer_replication.observe.summary import SummaryRow
from composer_replication.sandbox import Sandbox
from composer_replication.trainer.balance import ChosenAlarm, imbalance
from composer_replication.types import Group, Hint, Trajectory, Unscored
from composer_replication.types.channels import CHANNELS
from composer_replication.types.errors import SandboxError

DATA, WARNING = "data", "warning"
"""Kinds of events that a model card repeats."""
HELD_OUT = frozenset({"eval/pass_at_1", "pretrain/nll"})
"""Metrics of a policy on what is held out."""


def cpu_clock(sandbox: Sandbox | None) -> Callable[[], float]:
    """Return a clock of the CPU-seconds, user and system, spent since this call.

    It counts this process, every process it has waited for, and the programs in the sandbox. It does not count the launcher
    that makes sandboxes, nor processes elsewhere, such as local teachers.
    """

    def spent() -> float:
        return sum(os.times()[:4]) + (0.0 if sandbox is None else sandbox.cpu_s)

    start = spent()
    return lambda: spent() - start


@dataclass(slots=True)
class RolloutMeter:
    """A count of what an arm has spent. `clock` gives the CPU-seconds; None where another program does the work."""

    clock: Callable[[], float] | None = None
    rollouts: int = 0
    """Trajectories so far: training, evaluation and traces."""
    tokens: int = 0
    """Tokens sampled in them."""
    earlier_cpu_s: float = 0.0
    """Spend of the processes before this one."""

    def cpu_s(self) -> float | None:
        """Return CPU-seconds, user and system; None where they cannot be measured."""
        return None if self.clock is None else self.earlier_cpu_s + self.clock()

    def count(self, trajectories: Iterable[Trajectory]) -> None:
        """Add rollouts that are done."""
        for trajectory in trajectories:
            self.rollouts += 1
            self.tokens += trajectory.num_sampled_tokens()

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON for a checkpoint."""
        return {"rollouts": self.rollouts, "tokens": self.tokens, "cpu_s": self.cpu_s()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint: what was spent after it is forgotten."""
        self.rollouts, self.tokens = state["rollouts"], state["tokens"]
        self.earlier_cpu_s = (state["cpu_s"] or 0.0) - (0.0 if self.clock is None else self.clock())


@dataclass(slots=True)
class ArmJournal:
    """The writer of one arm's files, which also shows its steps. Files come first, then the terminal."""

    run_dir: RunDir
    terminal: Terminal
    arm: str
    steps: int
    """Optimizer steps of the arm."""
    meter: RolloutMeter
    teacher_totals: Mapping[str, float] = field(default_factory=dict)
    """Requests to teachers and their cost (`trainer.ask_teachers.teacher_totals`), once they were asked."""
    keeps_trajectories: bool = True
    """Write what each step learnt from beside its metrics."""
    card: Callable[[], None] = lambda: None
    """Write the arm's model card anew; called after every measurement on what is held out."""
    weighed: Sequence[str] = CHANNELS
    """Channels that are weighed against each other, because they share optimizer steps."""
    _told_of_balance: bool = False
    _chosen: ChosenAlarm = field(default_factory=ChosenAlarm)

    def note(self, text: str) -> None:
        """Report one line about the arm."""
        self.terminal.note(f"{self.arm}: {text}")

    def learns_from(self, what: str) -> None:
        """Report the data that the arm learns from, which its model card repeats."""
        self.note(what)
        self.run_dir.log_event(DATA, what, arm=self.arm)

    def warn(self, step: int, text: str) -> None:
        """Report what nobody wants of a step, which the arm's model card repeats."""
        self.note(f"step {step}: {text}")
        self.run_dir.log_event(WARNING, text, arm=self.arm, step=step)

    def rewind(self, step: int, *, keep_traces: bool = False) -> None:
        """Forget what the files say of steps after `step`; -1 forgets the start's evaluation too."""
        self.run_dir.truncate_after(self.arm, step, keep_traces=keep_traces)

    def resumed(self, step: int) -> None:
        """Forget what came after `step`, and say that the arm continues from there."""
        self.rewind(step)
        self.note(f"resumed at step {step} of {self.steps}")

    def log(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Write metrics of a step together with what the arm has spent, and return both."""
        known = {**metrics, **self.spent()}
        self.run_dir.log_metrics(self.arm, step, known)
        if not HELD_OUT.isdisjoint(metrics):
            self.card()
        return known

    def record_step(
        self,
        step: int,
        trajectories: Sequence[Trajectory],
        hints: Sequence[Hint],
        metrics: Mapping[str, float],
        off: Mapping[str, str],
        reattempts: Sequence[Trajectory] = (),
    ) -> dict[str, float]:
        """Record a training step and return all that was logged. `off` says why a channel had nothing to train on."""
        if self.keeps_trajectories:
            self.run_dir.write_trajectories(self.arm, step, trajectories)
        self.run_dir.write_hints(self.arm, step, hints)
        if reattempts:
            self.run_dir.write_reattempts(self.arm, step, reattempts)
        logged = self.log(step, metrics)
        self.terminal.step(self.arm, step, self.steps, logged, off)
        unbalanced = imbalance(metrics, self.weighed)
        if unbalanced is not None and not self._told_of_balance:
            self._told_of_balance = True
            self.warn(step, unbalanced)
        if (fallen := self._chosen.follow(metrics)) is not None:
            self.warn(step, fallen)
        return logged

    def record_evaluation(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Write the trajectories of an evaluation and return its metrics, which the caller logs with the step.

        Raises:
            SandboxError: none of the rollouts could be graded.
        """
        refuse_unscored(groups, f"{self.arm}: eval")
        passed, se = pass_at_1(groups)
        return self.write_evaluation(step, flat(groups), passed=passed, se=se, unscored=len(unscored(groups)))

    def write_evaluation(
        self, step: int, trajectories: Sequence[Trajectory], *, passed: float, se: float, unscored: int
    ) -> dict[str, float]:
        """Write the trajectories of an evaluation that another program graded, and return its metrics."""
        self.run_dir.write_evaluation(self.arm, step, trajectories)
        return {
            "eval/pass_at_1": passed,
            "eval/pass_at_1_se": se,
            "eval/unscored": float(unscored),
            "eval/alarms": _with_alarm(trajectories),
        }

    def spent(self) -> dict[str, float]:
        """Return what the arm has spent so far, as metrics."""
        cpu_s = self.meter.cpu_s()
        return {
            "rollout/total": float(self.meter.rollouts),
            "rollout/tokens_total": float(self.meter.tokens),
            **({} if cpu_s is None else {"cost/cpu_s": cpu_s}),
            **self.teacher_totals,
        }

    def summary(self) -> SummaryRow:
        """Return the arm's last evaluation and what the arm has spent."""
        passed, se = evaluated(self.run_dir, self.arm, first=False)
        return SummaryRow(
            arm=self.arm,
            pass_at_1=passed,
            pass_at_1_se=se,
            rollouts=self.meter.rollouts,
            tokens=self.meter.tokens,
            cpu_s=self.meter.cpu_s(),
        )


def evaluated(run_dir: RunDir, arm: str, *, first: bool) -> tuple[float, float]:
    """Return pass@1 and its standard error at the arm's first or last evaluation; NaN when there is none."""
    found = [m.values for m in run_dir.read_metrics() if m.arm == arm and "eval/pass_at_1" in m.values]
    if not found:
        return math.nan, math.nan
    values = found[0 if first else -1]
    return values["eval/pass_at_1"], values["eval/pass_at_1_se"]


def flat(groups: Sequence[Group]) -> list[Trajectory]:
    """Return the trajectories of all groups, in order."""
    return [t for g in groups for t in g.trajectories]


def unscored(groups: Sequence[Group]) -> list[str]:
    """Return the reason of every trajectory without a reward."""
    return [t.reward.reason for t in flat(groups) if isinstance(t.reward, Unscored)]


def refuse_unscored(groups: Sequence[Group], what: str) -> None:
    """Refuse rollouts of which none has a reward: the sandbox is broken, and no step would train anything.

    Raises:
        SandboxError: every trajectory is unscored; names the first reason.
    """
    total, reasons = len(flat(groups)), unscored(groups)
    if total and len(reasons) == total:
        raise SandboxError(
            f"{what}: none of the {total} rollouts could be graded: {reasons[0]}",
            fix="repair what the reason names, then continue with `composer train ... --resume`",
        )


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the metrics of a step's rollouts.

    Siblings are not independent, so the mean reward and its standard error are those of the groups' means, as in `pass_at_1`.
    """
    trajectories = flat(groups)
    scored = [[t.reward for t in g.trajectories if not isinstance(t.reward, Unscored)] for g in groups]
    stops = Counter(t.stop_reason for t in trajectories)
    graded = [t.grade for t in trajectories if t.grade is not None]
    mean, se = mean_and_se([math.fsum(rewards) / len(rewards) for rewards in scored if rewards])
    return {
        "reward/mean": mean,
        "reward/mean_se": se,
        "reward/unscored": float(len(trajectories) - sum(map(len, scored))),
        "cheat/alarms": _with_alarm(trajectories),
        "rlvr/frac_zero_std": sum(len(set(rewards)) < 2 for rewards in scored) / len(scored),
        "rollout/turns/mean": sum(len(t.turns) for t in trajectories) / len(trajectories),
        "rollout/tokens/mean": sum(t.num_sampled_tokens() for t in trajectories) / len(trajectories),
        "cost/grades_cached": sum(g.cached for g in graded) / max(1, len(graded)),
        **{f"stop/{reason.value}": count / len(trajectories) for reason, count in sorted(stops.items())},
    }


def _with_alarm(trajectories: Sequence[Trajectory]) -> float:
    """Return how many of them have a grade with an alarm, as metrics count."""
    return float(sum(t.grade is not None and bool(t.grade.alarms) for t in trajectories))
