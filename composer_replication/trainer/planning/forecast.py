"""What a whole arm takes, as far as a trial of it can tell."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from composer_replication.config import RunConfig
from composer_replication.loss.forward.model_checkpoint import KEPT
from composer_replication.observe import usd
from composer_replication.teachers import ReplayPlan, warn_of_cap
from composer_replication.trainer.planning.trial import Trial
from composer_replication.types.errors import ConfigError

_GIB = 2**30
_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the steps of one arm take, if all rollouts are like those of its trial."""

    arm: str
    trial: Trial
    steps: int
    step_rollouts: int
    evaluations: int
    updates: int
    """Optimizer steps of one step."""
    eval_rollouts: int
    """Of one evaluation."""
    trace_rollouts: int
    """Made once, for the teachers."""
    disk_bytes: float
    """Of all arms: their checkpoints and the weights in their servers' folders, while one more is written, and their
    trajectories."""
    free_bytes: int
    """On the disk of the run's folder."""
    usd_per_hour: float | None
    """Price of the machine; None where the run file names none."""
    left_out: Mapping[str, tuple[str, str]]
    """What the time leaves out, and how often it happens: in a step, in all of them."""

    @property
    def rollouts(self) -> int:
        return self.steps * self.step_rollouts + self.evaluations * self.eval_rollouts + self.trace_rollouts

    @property
    def update_s(self) -> float:
        """Return the seconds of a step's update: of its passes, which grow with its trajectories, and of its optimizer steps."""
        trial = self.trial
        passes_s = (trial.update_s - trial.optimizer_s) * self._pairs(self.step_rollouts)
        return passes_s + trial.optimizer_s / trial.updates * self.updates

    @property
    def loads(self) -> int:
        """Return how often weights are brought to a server: for each step, and for the last evaluation."""
        return self.steps + (self.evaluations > 0)

    @property
    def step_s(self) -> tuple[float, float]:
        """Return the seconds of a step: if its rollouts take no longer than the trial's, and if as many at a time are made."""
        fast, slow = self._rollout_s(self.step_rollouts)
        fixed = self.trial.load_s + self.update_s
        return fast + fixed, slow + fixed

    @property
    def run_s(self) -> tuple[float, float]:
        """Return the seconds of the arm, both ways."""
        parts = [
            [self.steps * seconds for seconds in self.step_s],
            [self.evaluations * seconds for seconds in self._rollout_s(self.eval_rollouts)],
            self._rollout_s(self.trace_rollouts),
            [(self.loads - self.steps) * self.trial.load_s] * 2,
        ]
        fast, slow = (sum(part[way] for part in parts) for way in (0, 1))
        return fast, slow

    @property
    def teachers(self) -> ReplayPlan | None:
        """Return the cost of asking teachers about all traces."""
        planned = self.trial.teachers
        if planned is None:
            return None
        scale = self._pairs(self.trace_rollouts)
        low, expected, high = (amount * scale for amount in (planned.usd.low, planned.usd.expected, planned.usd.high))
        return dataclasses.replace(planned, usd=dataclasses.replace(planned.usd, low=low, expected=expected, high=high))

    def _pairs(self, rollouts: int) -> float:
        return rollouts / len(self.trial.trajectories)

    def _rollout_s(self, rollouts: int) -> tuple[float, float]:
        least = min(1.0, rollouts)
        return self.trial.rollout_s * least, self.trial.rollout_s * max(least, self._pairs(rollouts))


def make_forecast(trial: Trial, config: RunConfig, arm: str, *, tasks: int, held_out: int, arms: int) -> Forecast:
    """Return what an arm takes.

    Args:
        config: of the arm.
        tasks: how many are trained on.
        arms: of the run.
    """
    rollout, replay = config.rollout, config.loss.replay
    evaluated = sum(step % config.eval.every == 0 or step == config.steps for step in range(config.steps + 1))
    asks = replay.weight > 0 and bool(config.teachers)
    made = Forecast(
        arm=arm,
        trial=trial,
        steps=config.steps,
        step_rollouts=rollout.groups * rollout.group_size,
        updates=config.optimizer.updates,
        evaluations=evaluated if held_out else 0,
        eval_rollouts=held_out * config.eval.samples,
        trace_rollouts=tasks * replay.traces_per_task if asks else 0,
        disk_bytes=0.0,
        free_bytes=shutil.disk_usage(_existing(config.out.absolute())).free,
        usd_per_hour=config.usd_per_hour,
        left_out=_left_out(config, asks=asks),
    )
    checkpoints = (KEPT * arms + 1) * trial.checkpoint_bytes
    served = 0 if rollout.server_weights is not None else (arms + 1) * trial.weights_bytes
    return dataclasses.replace(made, disk_bytes=checkpoints + served + arms * made.rollouts * trial.trajectory_bytes)


def _left_out(config: RunConfig, *, asks: bool) -> Mapping[str, tuple[str, str]]:
    """Return what a run spends time on that no trial tells, and how often."""
    refills, replay = config.rollout.refills, config.loss.replay
    again = replay.reattempts if replay.weight > 0 else 0
    found = {
        "refills": (f"up to {refills}", f"up to {config.steps * refills:,}") if refills else None,
        "re-attempts": (f"up to {again}", f"up to {config.steps * again:,}") if again else None,
        "answers of teachers, and pairs made of them": ("", "once") if asks else None,
    }
    return {what: how_often for what, how_often in found.items() if how_often is not None}


def say_forecast(forecast: Forecast) -> Table:
    """Return a table of a trial and of what follows from it."""
    trial = forecast.trial
    tried = len(trial.trajectories)
    table = Table(f"trial of arm {forecast.arm}", f"{tried} rollouts", "a step", f"{forecast.steps:,} steps", box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    turns = sum(len(trajectory.turns) for trajectory in trial.trajectories) / tried
    sampled = trial.sampled_tokens
    planned = forecast.teachers
    table.add_row(f"prompt of {trial.task_id}, tokens", f"{trial.prompt_tokens:,}", "", "")
    table.add_row("turns of a rollout", f"{turns:,.1f}", "", "")
    table.add_row(
        "rollouts, evaluations and traces included", f"{tried}", f"{forecast.step_rollouts:,}", f"{forecast.rollouts:,}"
    )
    counts = (tried, forecast.step_rollouts, forecast.rollouts)
    table.add_row("tokens sampled", *(f"{sampled * count:,.0f}" for count in counts))
    updates = (trial.update_s, forecast.update_s, forecast.steps * forecast.update_s)
    table.add_row("time of updates", *map(duration, updates))
    if trial.weights_bytes:
        loads = (trial.load_s, trial.load_s, forecast.loads * trial.load_s)
        table.add_row("time of bringing weights to the server", *map(duration, loads))
    times = ((trial.rollout_s + trial.load_s + trial.update_s,) * 2, forecast.step_s, forecast.run_s)
    table.add_row(f"time, from all rollouts side by side to {tried} at a time", *(_span(*time) for time in times))
    for what, how_often in forecast.left_out.items():
        table.add_row(f"not in the time: {what}", "", *how_often)
    table.add_row("GiB on disk, all arms", "", "", f"{forecast.disk_bytes / _GIB:,.2f} of {forecast.free_bytes / _GIB:,.2f} free")
    if forecast.usd_per_hour is not None:
        table.add_row("US dollars for the machine, this arm", "", *(_price(time, forecast.usd_per_hour) for time in times[1:]))
    if planned is not None:
        cost = planned.usd
        table.add_row("US dollars for teachers", "", "", f"{usd(cost.expected)} ({usd(cost.low)} to {usd(cost.high)})")
    return table


def check_forecast(forecast: Forecast, config: RunConfig) -> str | None:
    """Return a warning about the money, where there is one.

    Raises:
        ConfigError: the disk has no room for the run.
        BudgetExceededError: as `warn_of_cap`.
    """
    if forecast.disk_bytes > forecast.free_bytes:
        raise ConfigError(
            f"the run needs {forecast.disk_bytes / _GIB:,.1f} GiB of disk in {config.out}, which has "
            f"{forecast.free_bytes / _GIB:,.1f} GiB",
            fix="free space, or set out to a folder on a larger disk",
        )
    return None if forecast.teachers is None else warn_of_cap(forecast.teachers, config.loss.replay.max_total_usd)


def duration(seconds: float) -> str:
    """Write a time with two digits or more: `0.4 s`, `25 s`, `12 min`, `3.5 h`."""
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size or size == 1.0)
    count = seconds / size
    return f"{count:,.0f} {unit}" if count >= 10 else f"{count:,.1f} {unit}"


def _span(fast: float, slow: float) -> str:
    return duration(fast) if duration(fast) == duration(slow) else f"{duration(fast)} to {duration(slow)}"


def _price(span_s: tuple[float, float], usd_per_hour: float) -> str:
    fast, slow = (usd(seconds / 3600 * usd_per_hour) for seconds in span_s)
    return fast if fast == slow else f"{fast} to {slow}"


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
