"""Transcripts from wherever they are kept: a run's folder, an import's, or a file of trajectories or imported traces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from composer_replication.cli.support.kinds import refuse_other_kind
from composer_replication.observe.run_dir import RunDir
from composer_replication.traces.importing import TRACES
from composer_replication.traces.store import trace_from_json
from composer_replication.types import Hint, Trajectory, from_json
from composer_replication.types.errors import ConfigError, StorageError
from composer_replication.types.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Transcripts that belong together, as those of one step do: siblings are among them."""

    name: str
    arm: str = ""
    """The arm of a run; empty for other logs."""
    transcripts: tuple[Transcript, ...]
    hints: Mapping[tuple[str, int, str], Hint] = field(default_factory=dict)
    """Hints used or withheld in training, by trajectory, turn and kind of finding."""
    consensus: Mapping[str, str] = field(default_factory=dict)
    """By state id, the teachers' choice."""


def read_transcripts(path: Path) -> Iterator[Batch]:
    """Read the transcripts at `path`, one batch per step of a run.

    Raises:
        ConfigError: there is nothing there, it is something else, or a line of it is none of these.
        StorageError: the file ends in the middle of a line.
    """
    refuse_other_kind(path, "transcripts")
    if (path / TRACES).is_file():
        path = path / TRACES
    if path.is_dir():
        run = RunDir(path)
        for arm in run.arms():
            consensus = {str(row["state_id"]): str(row["chosen"]) for row in run.read_pairs(arm)}
            if traces := run.read_traces(arm):
                yield Batch(name=f"{arm}, frozen traces", arm=arm, transcripts=tuple(traces), consensus=consensus)
            for step in run.steps(arm):
                hints = {(hint.trajectory_id, hint.turn, hint.kind): hint for hint in run.read_hints(arm, step)}
                transcripts = tuple(run.read_trajectories(arm, step))
                yield Batch(name=f"{arm}, step {step}", arm=arm, transcripts=transcripts, hints=hints)
        return
    yield Batch(name=path.name, transcripts=tuple(_lines(path)))


def _lines(path: Path) -> Iterator[Transcript]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", fix="name a run directory, or a .jsonl file of trajectories or traces"
        ) from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            yield trace_from_json(data) if "format" in data else from_json(Trajectory, data)
        except json.JSONDecodeError as error:
            if number > text.count("\n"):
                raise StorageError(
                    f"{path}, line {number}: the file ends in the middle of it", fix="the file is damaged: make it again"
                ) from error
            raise _unknown(path, number, error) from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise _unknown(path, number, error) from error


def _unknown(path: Path, number: int, error: Exception) -> ConfigError:
    return ConfigError(
        f"{path}, line {number}: neither a trajectory nor a trace ({type(error).__name__}: {error})",
        fix="name a file with one trajectory or imported trace a line",
    )
