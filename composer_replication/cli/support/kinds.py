"""Recognition of files and folders: where another kind was meant, the error names the command that makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from composer_replication.traces import readers
from composer_replication.traces.importing import TRACES
from composer_replication.traces.source import UnreadableError, peek
from composer_replication.types.errors import ConfigError

Wanted: TypeAlias = Literal["imported traces", "transcripts", "a file of transcripts", "states"]

_TAKEN: dict[Wanted, set[str]] = {
    "imported traces": {"traces", "import"},
    "transcripts": {"traces", "import", "trajectories", "run"},
    "a file of transcripts": {"traces", "trajectories"},
    "states": {"states"},
}
_CALLED = {
    "traces": "a file of imported traces",
    "import": "a folder of imported traces",
    "trajectories": "a file of trajectories",
    "run": "a run directory",
    "states": "a file of states",
}


def refuse_other_kind(path: Path, wanted: Wanted) -> None:
    """Say nothing of what is of the kind `wanted`, is not there, or cannot be recognised.

    Raises:
        ConfigError: `path` is plainly something else; the fix names the command that is meant.
    """
    kind = _kind(path)
    if kind and kind not in _TAKEN[wanted]:
        called = _CALLED.get(kind, f"a log of the format {kind}")
        raise ConfigError(f"{path} is {called}, not {wanted}", fix=_fix(path, kind, wanted))


def _kind(path: Path) -> str:
    """Return a key of `_CALLED`, the format of a log, or an empty text."""
    if path.is_dir() and (path / TRACES).is_file():
        return "import"
    if path.is_dir() and (path / "metrics.jsonl").is_file():
        return "run"
    try:
        first = peek(path)[0] if path.is_file() else {}
    except UnreadableError:
        return ""
    if {"trajectory_id", "turns"} <= first.keys():
        return "traces" if "format" in first else "trajectories"
    if first.keys() & {"state_id", "student_action"}:
        return "states"
    return next((reader.name for reader in readers().values() if path.exists() and reader.sniff(path)), "")


def _fix(path: Path, kind: str, wanted: Wanted) -> str:
    importing = f"`composer traces import {path} --out traces`"
    if kind == "states":
        return "name the traces that the states were made from"
    if wanted == "states":
        source, before = (path, "") if kind in ("traces", "import") else (Path("traces"), f"{importing}, then ")
        return f"{before}`composer traces states {source} --out states.jsonl`, and name that file"
    if kind == "import":
        return f"name {path / TRACES}"
    if kind == "run" and wanted == "a file of transcripts":
        return f"name a file of {path / 'trajectories'}"
    return f"{importing}, and name {Path('traces') / TRACES if wanted == 'a file of transcripts' else 'that folder'}"
