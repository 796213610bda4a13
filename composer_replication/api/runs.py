"""Read a run: its metrics, trajectories and weights, as plain rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.observe import RunDir
from composer_replication.observe.summary import SummaryRow, load_summary
from composer_replication.types import Trajectory, Unscored
from composer_replication.types.errors import ConfigError


class Run:
    """A run directory. Rows are plain dictionaries: `pandas.DataFrame(run.metrics)` works."""

    def __init__(self, run_dir: RunDir) -> None:
        self.path = run_dir.path
        self._run_dir = run_dir

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, arms={list(self.arms)})"

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that have begun, in order."""
        return self._run_dir.arms()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One row per logged step: `arm`, `step`, and every metric by its name."""
        return [{"arm": line.arm, "step": line.step, **line.values} for line in self._run_dir.read_metrics()]

    @property
    def summary(self) -> list[SummaryRow]:
        """One row per arm, led by the starting policy; empty until the first arm is done."""
        return list(load_summary(self._run_dir).rows)

    @property
    def report(self) -> Path:
        """The path of `report.html`."""
        return self._run_dir.report_path

    def trajectories(self, arm: str | None = None, step: int | None = None, *, evaluation: bool = False) -> list[dict[str, Any]]:
        """Return one row per trajectory of training, or of the evaluations: `arm`, `step`, `task_id`, `reward` (None when it
        could not be graded), `unscored` (why), `stop_reason`, `turns`, `sampled_tokens`, and the `trajectory` itself.

        Args:
            arm: None for all arms.
            step: None for all steps.

        Raises:
            ConfigError: there is no such arm, or it has no such step.
        """
        rows: list[dict[str, Any]] = []
        for name in [self._arm(arm)] if arm is not None else self.arms:
            steps = self._run_dir.evaluations(name) if evaluation else self._run_dir.steps(name)
            if step is not None and step not in steps:
                kind = "evaluation" if evaluation else "step"
                raise ConfigError(
                    f"arm {name} has no {kind} {step}", fix=f"choose one of: {', '.join(map(str, steps)) or 'none'}"
                )
            for at in steps if step is None else [step]:
                found = self._run_dir.read_evaluation(name, at) if evaluation else self._run_dir.read_trajectories(name, at)
                rows += [_row(name, at, one) for one in found]
        return rows

    def policy(self, arm: str | None = None) -> Path:
        """Return the folder of an arm's newest weights, which `from_pretrained`, `evaluate` and `model.path` take.

        Raises:
            ConfigError: there is no such arm, several and none is named, or no checkpoint yet.
        """
        if arm is None and len(self.arms) != 1:
            raise ConfigError(f"{self.path} has {len(self.arms)} arms", fix=f"name one of: {', '.join(self.arms) or 'none yet'}")
        name = self.arms[0] if arm is None else self._arm(arm)
        found = latest_checkpoint(self._run_dir.ckpt_path / name)
        if found is None:
            raise ConfigError(f"arm {name} of {self.path} has no checkpoint yet", fix="train it further")
        return found

    def _arm(self, arm: str) -> str:
        known: Sequence[str] = self.arms
        if arm not in known:
            raise ConfigError(f"{self.path} has no arm {arm!r}", fix=f"choose one of: {', '.join(known) or 'none yet'}")
        return arm


def load_run(path: str | os.PathLike[str]) -> Run:
    """Open a run directory, finished or not. Raises ConfigError when there is none at `path`."""
    return Run(RunDir(Path(path)))


def _row(arm: str, step: int, one: Trajectory) -> dict[str, Any]:
    unscored = one.reward.reason if isinstance(one.reward, Unscored) else None
    return {
        "arm": arm,
        "step": step,
        "task_id": one.task_id,
        "trajectory_id": one.trajectory_id,
        "reward": None if unscored is not None else one.reward,
        "unscored": unscored,
        "stop_reason": one.stop_reason.value,
        "turns": len(one.turns),
        "sampled_tokens": one.num_sampled_tokens(),
        "trajectory": one,
    }
