"""A run is a folder of readable files: everything it was given, measured and did.

    runs/NAME/
        config.toml                           the resolved configuration
        metrics.jsonl                         one line per logged step: {"arm", "step", metric: value, ...}
        events.jsonl                          what happened and when: {"time", "kind", "message", ...}
        trajectories/ARM/step_NNNNN.jsonl     one `Trajectory` per line
        trajectories/ARM/step_NNNNN.hints.jsonl    one `Hint` per line
        trajectories/ARM/step_NNNNN.reattempts.jsonl    the step's hinted re-attempts, likewise; their contexts are without hints
        trajectories/ARM/eval_NNNNN.jsonl     the trajectories of that step's evaluation, likewise
        trajectories/ARM/traces.jsonl         the frozen traces that teachers re-answer, likewise
        trajectories/ARM/pairs.jsonl          one replay pair in text per line
        ckpt/                                 checkpoints, pairs in token ids, the reference's log-probs of them
        summary.json, report.html             the result

One process writes a run at a time; several of its threads may.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from composer_replication.observe import files
from composer_replication.types import Hint, Trajectory, from_json, to_json
from composer_replication.types.errors import ConfigError

_ARM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_STEP_FILE = re.compile(r"(step|eval)_(\d{5,})(\.hints|\.reattempts)?\.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsLine:
    """Metrics of one arm at one step. An arm may log a step in several lines."""

    arm: str
    step: int
    """Optimizer steps taken when it was measured; 0 is before training."""
    values: Mapping[str, float]


class RunDir:
    """The folder of one run, opened for reading and writing."""

    def __init__(self, path: Path | str) -> None:
        """Open an existing run. Raises ConfigError when there is none at `path`."""
        self.path = Path(path)
        self.config_path = self.path / "config.toml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.events_path = self.path / "events.jsonl"
        self.ckpt_path = self.path / "ckpt"
        """The folder of checkpoints; their format belongs to the trainer."""
        self.report_path = self.path / "report.html"
        self.summary_path = self.path / "summary.json"
        self._lock = threading.Lock()
        if not self.metrics_path.is_file():
            raise ConfigError(
                f"{self.path} is not a run directory: it has no metrics.jsonl",
                fix="name a folder that `composer train` wrote, e.g. runs/NAME",
            )

    @classmethod
    def create(cls, path: Path | str) -> RunDir:
        """Make the folder of a new run.

        Raises:
            ConfigError: `path` already holds a run that has measured something, or is not a folder.
            StorageError: the folder cannot be written.
        """
        path = Path(path)
        cls.refuse_begun(path)
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file, not a folder", fix="choose another name for the run")
        for folder in ("trajectories", "ckpt"):
            with files.storage_errors(path / folder):
                (path / folder).mkdir(parents=True, exist_ok=True)
        files.replace_file(path / "metrics.jsonl", b"")
        return cls(path)

    @staticmethod
    def has_begun(path: Path) -> bool:
        """Return whether a run at `path` has measured anything yet; one that has not can be started over."""
        metrics = path / "metrics.jsonl"
        return metrics.exists() and metrics.stat().st_size > 0

    @classmethod
    def refuse_begun(cls, path: Path) -> None:
        """Raise ConfigError when there is a run at `path` that a new one would replace."""
        if cls.has_begun(path):
            raise ConfigError(
                f"{path} already holds a run", fix="continue it with --resume, or choose another name for the new run"
            )

    # --- where things are

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def trajectories_path(self, arm: str, step: int) -> Path:
        """Return the trajectories' path. Raises ValueError for an arm that cannot be a folder's name or a negative step."""
        if step < 0:
            raise ValueError(f"step {step} is negative")
        return self._arm_path(arm) / f"step_{step:05d}.jsonl"

    def hints_path(self, arm: str, step: int) -> Path:
        return self.trajectories_path(arm, step).with_suffix(".hints.jsonl")

    def reattempts_path(self, arm: str, step: int) -> Path:
        return self.trajectories_path(arm, step).with_suffix(".reattempts.jsonl")

    def evaluation_path(self, arm: str, step: int) -> Path:
        path = self.trajectories_path(arm, step)
        return path.with_name(path.name.replace("step", "eval"))

    def traces_path(self, arm: str) -> Path:
        return self._arm_path(arm) / "traces.jsonl"

    def pairs_path(self, arm: str) -> Path:
        return self._arm_path(arm) / "pairs.jsonl"

    def _arm_path(self, arm: str) -> Path:
        if not _ARM.fullmatch(arm):
            raise ValueError(f"arm {arm!r} must consist of letters, digits, '_', '-' and '.', and not start with '-' or '.'")
        return self.path / "trajectories" / arm

    # --- writing (each raises StorageError when the disk refuses)

    def write_config(self, toml: str) -> None:
        """Write the resolved configuration."""
        files.replace_file(self.config_path, toml.encode())

    def log_metrics(self, arm: str, step: int, values: Mapping[str, float]) -> None:
        """Append one line of metrics, and make it and all earlier events durable. Keys are written in sorted order."""
        self.trajectories_path(arm, step)  # one rule for arms and steps everywhere
        if reserved := {"arm", "step"} & values.keys():
            raise ValueError(f"metric name {reserved.pop()!r} is reserved")
        line = {"arm": arm, "step": step, **{name: float(values[name]) for name in sorted(values)}}
        with self._lock:
            files.append_line(self.metrics_path, files.dump_line(line), durable=True)
            files.sync(self.events_path)

    def log_event(self, kind: str, message: str, /, **fields: Any) -> None:
        """Append one event with the current time (UTC).

        It survives the death of the process at once, and a power cut from the next metrics line on.
        """
        if reserved := {"time", "kind", "message"} & fields.keys():
            raise ValueError(f"event field {reserved.pop()!r} is reserved")
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = files.dump_line({"time": now, "kind": kind, "message": message, **to_json(fields)})
        with self._lock:
            files.append_line(self.events_path, line, durable=False)

    def write_trajectories(self, arm: str, step: int, trajectories: Iterable[Trajectory]) -> None:
        """Write all trajectories of one step, replacing what was there."""
        _replace_lines(self.trajectories_path(arm, step), [trajectory_row(t) for t in trajectories])

    def write_evaluation(self, arm: str, step: int, trajectories: Iterable[Trajectory]) -> None:
        """Write all trajectories of the evaluation after `step` optimizer steps, replacing what was there."""
        _replace_lines(self.evaluation_path(arm, step), [trajectory_row(t) for t in trajectories])

    def write_traces(self, arm: str, trajectories: Iterable[Trajectory]) -> None:
        """Write the frozen traces of an arm, replacing what was there."""
        _replace_lines(self.traces_path(arm), [trajectory_row(t) for t in trajectories])

    def write_hints(self, arm: str, step: int, hints: Iterable[Hint]) -> None:
        """Write all hints of one step, replacing what was there."""
        _replace_lines(self.hints_path(arm, step), [to_json(h) for h in hints])

    def write_reattempts(self, arm: str, step: int, trajectories: Iterable[Trajectory]) -> None:
        """Write the hinted re-attempts of one step, replacing what was there."""
        _replace_lines(self.reattempts_path(arm, step), [trajectory_row(t) for t in trajectories])

    def write_pairs(self, arm: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add replay pairs in text.

        A row whose `pair_id` is already there replaces the old one, so repeating a call changes nothing.
        A row is `{"pair_id", "state_id", "trajectory_id", "turn", "chosen", "rejected", "votes": {teacher: text}}`.
        """
        with self._lock:
            merged = {row["pair_id"]: row for row in (*self.read_pairs(arm), *rows)}
            _replace_lines(self.pairs_path(arm), list(merged.values()))

    def truncate_after(self, arm: str, step: int, *, keep_traces: bool = False) -> None:
        """Forget metrics, trajectories, evaluations and hints of `arm` later than `step`, as after going back to a checkpoint of
        that step.

        `step` -1 forgets all of them, and unless `keep_traces` the frozen traces. Also removes a torn last line of
        metrics.jsonl. Events and pairs stay: events are history, and pairs merge by their id. Killed half-way it can be repeated.
        """
        folder = self._arm_path(arm)
        with self._lock:
            lines = list(files.read_lines(self.metrics_path))
            kept = [line for line in lines if line["arm"] != arm or line["step"] <= step]
            _replace_lines(self.metrics_path, kept)
            later = [path for path, at in _step_files(folder) if at > step]
            files.remove(later if step >= 0 or keep_traces else [*later, self.traces_path(arm)])
            files.sync(folder)

    # --- reading

    def arms(self) -> tuple[str, ...]:
        """Return every arm with metrics or trajectories, in the order of their first metrics line."""
        found = dict.fromkeys(line.arm for line in self.read_metrics())
        folders = sorted(p.name for p in (self.path / "trajectories").glob("*") if p.is_dir())
        return tuple(found | dict.fromkeys(folders))

    def steps(self, arm: str) -> tuple[int, ...]:
        """Return the steps of `arm` that have trajectories, ascending."""
        return tuple(at for path, at in _step_files(self._arm_path(arm)) if path == self.trajectories_path(arm, at))

    def evaluations(self, arm: str) -> tuple[int, ...]:
        """Return the steps of `arm` that have the trajectories of an evaluation, ascending."""
        return tuple(at for path, at in _step_files(self._arm_path(arm)) if path == self.evaluation_path(arm, at))

    def read_metrics(self) -> list[MetricsLine]:
        """Read every line of metrics.jsonl in file order, a torn last one left out."""
        return [
            MetricsLine(
                arm=line["arm"], step=line["step"], values={k: float(v) for k, v in line.items() if k not in ("arm", "step")}
            )
            for line in files.read_lines(self.metrics_path)
        ]

    def read_events(self) -> list[dict[str, Any]]:
        """Read every event in file order, a torn last one left out."""
        return list(files.read_lines(self.events_path))

    def read_off(self) -> dict[tuple[str, int], Mapping[str, str]]:
        """Read why channels were off, by arm and step, as it was when the step was taken for the last time: a resumed run repeats
        steps."""
        return {(event["arm"], event["step"]): event["off"] for event in self.read_events() if event["kind"] == "step"}

    def read_trajectories(self, arm: str, step: int) -> list[Trajectory]:
        """Read the trajectories of one step, exactly as they were written. Raises ConfigError when the step has none."""
        path = self.trajectories_path(arm, step)
        if not path.exists():
            known = ", ".join(map(str, self.steps(arm))) or "none"
            raise ConfigError(f"no trajectories at {path}", fix=f"choose a step that was recorded; arm {arm!r} has: {known}")
        return [from_json(Trajectory, line) for line in files.read_lines(path)]

    def read_evaluation(self, arm: str, step: int) -> list[Trajectory]:
        """Read the trajectories of one evaluation; empty when there was none."""
        return [from_json(Trajectory, line) for line in files.read_lines(self.evaluation_path(arm, step))]

    def read_traces(self, arm: str) -> list[Trajectory]:
        """Read the frozen traces of an arm; empty when there are none."""
        return [from_json(Trajectory, line) for line in files.read_lines(self.traces_path(arm))]

    def read_reattempts(self, arm: str, step: int) -> list[Trajectory]:
        """Read the hinted re-attempts of one step; empty when there were none."""
        return [from_json(Trajectory, line) for line in files.read_lines(self.reattempts_path(arm, step))]

    def read_hints(self, arm: str, step: int) -> list[Hint]:
        """Read the hints of one step; empty when there were none."""
        return [Hint(**line) for line in files.read_lines(self.hints_path(arm, step))]

    def read_pairs(self, arm: str) -> list[dict[str, Any]]:
        """Read the replay pairs of an arm; empty when there are none."""
        return list(files.read_lines(self.pairs_path(arm)))


def trajectory_row(trajectory: Trajectory) -> Any:
    """Return a trajectory as a run's files have it: without the experts of a mixture, which are as large as all the rest, and
    which only the update after the rollout reads."""
    return to_json(dataclasses.replace(trajectory, experts=None))


def _step_files(folder: Path) -> list[tuple[Path, int]]:
    """Return the files of one arm that belong to a step, with their steps, ascending."""
    matches = ((path, _STEP_FILE.fullmatch(path.name)) for path in folder.glob("*.jsonl"))
    return sorted(((path, int(match[2])) for path, match in matches if match), key=lambda found: found[1])


def _replace_lines(path: Path, records: Sequence[Any]) -> None:
    """Replace a file of JSON lines. Python's JSON writes floats so that they read back exactly, `NaN` and `Infinity` included."""
    files.replace_file(path, b"".join(json.dumps(record, default=str).encode() + b"\n" for record in records))
