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

from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.tasks.files import write_whole
from composer_replication.tasks.sources.source import STATE
from composer_replication.tasks.spec import spec_of
from composer_replication.tasks.store import MANIFEST, Task, indexed_record, load_task, version_of
from composer_replication.types.errors import TaskError
from composer_replication.types.held_out_checks import AntiTest, GoldProfile, HeldOutChecks, HeldOutProgram

_INDEX = f"{STATE}/index.jsonl"
_MOST_BYTES = 1 << 30


class StoredChecks(HeldOutChecks):
    """The held-out checks of a task's folder, read when they are first asked for. Copies, pickled ones too, are plain: what
    `dataclasses.replace` makes is a `HeldOutChecks`."""

    _root: Path

    def __new__(cls, *_: object, **fields: Any) -> Any:
        return HeldOutChecks(**fields) if fields else super().__new__(cls)

    def __init__(self, root: Path, weakness: str) -> None:
        object.__setattr__(self, "weakness", weakness)
        object.__setattr__(self, "_root", root)

    @property
    def _stored(self) -> HeldOutChecks:
        return _checks_of(self._root, version_of(self._root))

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
def _checks_of(root: Path, _version: tuple[int, int]) -> HeldOutChecks:
    return load_task(root).spec.hidden


def write_index(folder: Path) -> None:
    """Write the index of the intact tasks directly below `folder`. Raises StorageError."""
    lines = []
    for manifest in sorted(folder.glob(f"[!.]*/{MANIFEST}")):
        try:
            task = load_task(manifest.parent)
        except TaskError:
            continue  # whoever loads it is told
        sealed = {"folder": manifest.parent.name, "manifest": hashlib.sha256(manifest.read_bytes()).hexdigest()}
        lines.append(json.dumps({**sealed, **indexed_record(task.spec, task.provenance)}, default=str))
    write_whole(folder / _INDEX, "".join(f"{line}\n" for line in lines).encode())


def indexed_tasks(folder: Path) -> dict[str, Task]:
    """Return by folder name the tasks below `folder` whose lines in its index are of their present manifests. None of their files
    is read but the manifest: the others, and whether the index tells the truth, are checked when the task is used."""
    try:
        with OpenFolder(folder.resolve()) as top:
            lines = top.read(_INDEX, _MOST_BYTES).decode("utf-8").splitlines()
            found = [_task_of(folder, top, line) for line in lines]
    except (OSError, UnicodeDecodeError):
        return {}
    return {task.root.name: task for task in found if task is not None}


def _task_of(folder: Path, top: OpenFolder, line: str) -> Task | None:
    try:
        record: dict[str, Any] = json.loads(line)
        name = Path(record["folder"]).name
        if hashlib.sha256(top.read(f"{name}/{MANIFEST}", _MOST_BYTES)).hexdigest() != record["manifest"]:
            return None
        provenance, root = dict(record["provenance"]), folder / name
        spec = replace(spec_of({**record["task"], "hidden": {}}), hidden=StoredChecks(root, str(record["weakness"])))
        return Task(spec, root, provenance, indexed=(spec, provenance))
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None  # another release's, torn, or of a task that is gone: the folder itself decides
