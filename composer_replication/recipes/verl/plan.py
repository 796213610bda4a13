"""The plan that every process of a run under verl reads: the arm, its configuration, and where to write."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from composer_replication.config import RunConfig
from composer_replication.observe import files
from composer_replication.types.errors import ConfigError

CPU_ROLLOUT = "composer_cpu"
"""Our rollout server's name (`actor_rollout_ref.rollout.name`)."""
PLAN = "COMPOSER_VERL_PLAN"
"""Environment variable: the plan's file. Ray hands it to every process of the run."""


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """The plan of one arm."""

    arm: str
    config: RunConfig
    """The arm's configuration (`config.resolve_arm`)."""
    context_window: int
    """Most positions the policy can attend to."""
    folder: Path
    """The arm's own folder in the run directory: on several machines, one that all of them see."""

    @property
    def path(self) -> Path:
        return self.folder / "plan.json"

    @property
    def fault_path(self) -> Path:
        """The file that says why no rollout can continue; written when that happens."""
        return self.folder / "fault.txt"

    @property
    def metrics_path(self) -> Path:
        """verl's metrics, a line of JSON each step."""
        return self.folder / "verl.jsonl"

    @property
    def log_path(self) -> Path:
        """The output of verl's processes."""
        return self.folder / "verl.log"

    def write(self) -> None:
        """Write the plan where `required` finds it. Raises StorageError."""
        files.replace_file(self.path, _PLANS.dump_json(self))

    @classmethod
    def required(cls) -> ArmPlan:
        """Return the plan of the run that this process is part of.

        Raises:
            ConfigError: the process is part of no run, or cannot read the plan.
        """
        path = os.environ.get(PLAN)
        if not path:
            raise ConfigError(f"{PLAN} is not set", fix="start the run with `composer train`")
        return _read(Path(path))


_PLANS = TypeAdapter(ArmPlan)


@cache
def _read(path: Path) -> ArmPlan:
    """Read a plan, which does not change while its run lasts."""
    try:
        return _PLANS.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{PLAN}: {path}: {error.strerror}", fix="start the run with `composer train`, on a folder that all machines see"
        ) from error


def on_cpu() -> bool:
    """Return whether verl was told to do without an accelerator."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
