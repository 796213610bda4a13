"""An index of a build's tasks: all that lists and choices need of them in one file, so that thousands are loaded in a second.

A line holds a task's record without its held-out checks, and the digest of its manifest. A task that has changed since, or has no
line, is read from its own folder; the checks are read from there when they are asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from composer_replication.tasks.files import write_whole
from composer_replication.tasks.sources.source import STATE
from composer_replication.tasks.spec import spec_of
from composer_replication.tasks.store import MANIFEST, Task, check_once, load_task
from composer_replication.types import to_json
from composer_replication.types.held_out_checks import AntiTest, GoldProfile, HeldOutChecks, HeldOutProgram

_INDEX = f"{STATE}/index.jsonl"


class StoredChecks(HeldOutChecks):
    """The held-out checks of a task's folder, read when they are first asked for. Copies, pickled ones too, are plain."""

    _root: Path

    def __init__(self, root: Path, weakness: str) -> None:
        object.__setattr__(self, "weakness", weakness)
        object.__setattr__(self, "_root", root)

    @property
    def _stored(self) -> HeldOutChecks:
        check_once(self._root)
        return _checks_of(self._root, (self._root / MANIFEST).stat().st_mtime_ns)

    @property
    def programs(self) -> tuple[HeldOutProgram, ...]:
        return self._stored.programs

    @property
    def anti_tests(self) -> tuple[AntiTest, ...]:
        return self._stored.anti_tests

    @property
    def profile(self) -> GoldProfile | None:
        return self._stored.profile

    @property
    def untold(self) -> int:
        return self._stored.untold

    def __eq__(self, other: object) -> bool:
        return self._stored == (other._stored if isinstance(other, StoredChecks) else other)

    def __hash__(self) -> int:
        return hash(self._stored)

    def __reduce__(self) -> tuple[Callable[[HeldOutChecks], HeldOutChecks], tuple[HeldOutChecks]]:
        return _plain, (self._stored,)


def _plain(checks: HeldOutChecks) -> HeldOutChecks:
    return checks


@lru_cache(maxsize=64)
def _checks_of(root: Path, _changed: int) -> HeldOutChecks:
    return load_task(root).spec.hidden


def write_index(folder: Path) -> None:
    """Write the index of the tasks directly below `folder`. Raises TaskError for a damaged one, and StorageError."""
    lines = []
    for manifest in sorted(folder.glob(f"[!.]*/{MANIFEST}")):
        task = load_task(manifest.parent)
        record = to_json(task.spec)
        del record["hidden"]
        line = {
            "folder": manifest.parent.name,
            "manifest": hashlib.sha256(manifest.read_bytes()).hexdigest(),
            "weakness": task.spec.hidden.weakness,
            "provenance": task.provenance,
            "task": record,
        }
        lines.append(json.dumps(line, default=str))
    write_whole(folder / _INDEX, "".join(f"{line}\n" for line in lines).encode())


def indexed_tasks(folder: Path) -> dict[str, Task]:
    """Return by folder name the tasks below `folder` whose lines in its index are valid: none of their files is read but the
    manifest, and the others are checked when they are used."""
    try:
        lines = (folder / _INDEX).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = (_task_of(folder, line) for line in lines)
    return {task.root.name: task for task in found if task is not None}


def _task_of(folder: Path, line: str) -> Task | None:
    try:
        record: dict[str, Any] = json.loads(line)
        root = folder / Path(record["folder"]).name
        if hashlib.sha256((root / MANIFEST).read_bytes()).hexdigest() != record["manifest"]:
            return None
        spec = spec_of({**record["task"], "hidden": {}})
        hidden = StoredChecks(root, str(record["weakness"]))
        return Task(replace(spec, hidden=hidden), root, record["provenance"], unchecked=True)
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None  # another release's, torn or forged: the folder itself decides
