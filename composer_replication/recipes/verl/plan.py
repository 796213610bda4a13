"""What every process of a run under verl has to know: the arm, its configuration, and where to write."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.observe import files
from composer_replication.types.errors import ConfigError

__all__ = ["CPU_ROLLOUT", "PLAN", "ArmPlan", "on_cpu"]

CPU_ROLLOUT = "composer_cpu"
"""Our rollout server's name (`actor_rollout_ref.rollout.name`)."""
PLAN = "COMPOSER_VERL_PLAN"
"""Environment variable: the plan's file. Ray hands it to every process of the run."""


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """One arm of a run."""

    arm: str
    config: RunConfig
    """Of the arm (`config.resolve_arm`)."""
    context_window: int
    """Most positions the policy can attend to."""
    folder: Path
    """The arm's own folder in the run directory: on several machines, one that all of them see."""

    @property
    def path(self) -> Path:
        return self.folder / "plan.json"

    @property
    def fault_path(self) -> Path:
        """Why no rollout can go on, once that is so."""
        return self.folder / "fault.txt"

    @property
    def metrics_path(self) -> Path:
        """verl's metrics, a line of JSON each step."""
        return self.folder / "verl.jsonl"

    @property
    def log_path(self) -> Path:
        """What verl's processes print."""
        return self.folder / "verl.log"

    def write(self) -> None:
        """Raises StorageError when the disk refuses."""
        data: dict[str, Any] = {"arm": self.arm, "config": self.config.model_dump(mode="json"), "folder": str(self.folder)}
        data["context_window"] = self.context_window
        with files.storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        files.replace_file(self.path, json.dumps(data).encode())

    @classmethod
    def read(cls, path: Path) -> ArmPlan:
        """Raises ConfigError when there is none."""
        try:
            data: Mapping[str, Any] = json.loads(path.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{PLAN}: {path}: {error.strerror}", fix="start the run with `composer train`, on a folder that all machines see"
            ) from error
        config = RunConfig.model_validate(data["config"])
        return cls(data["arm"], config, data["context_window"], Path(data["folder"]))

    @classmethod
    def current(cls) -> ArmPlan | None:
        """That of the run this process is part of; None in a process of somebody else's. Raises ConfigError as `read`."""
        return _once(Path(os.environ[PLAN])) if os.environ.get(PLAN) else None

    @classmethod
    def required(cls) -> ArmPlan:
        """The same, where there must be one. Raises ConfigError when there is none."""
        found = cls.current()
        if found is None:
            raise ConfigError(f"{PLAN} is not set", fix="start the run with `composer train`")
        return found


@cache
def _once(path: Path) -> ArmPlan:
    """A plan does not change while its run lasts."""
    return ArmPlan.read(path)


def on_cpu() -> bool:
    """Return whether verl was told to do without an accelerator."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
