"""Folders of tasks, and sets of tasks: folders of such folders, one for each repository."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from composer_replication.tasks.files import read_json
from composer_replication.tasks.index import indexed_tasks
from composer_replication.tasks.report import BUILD_REPORT
from composer_replication.tasks.solved import solved_tasks
from composer_replication.tasks.spec import is_task_id
from composer_replication.tasks.store import ASIDE, MANIFEST, Task, bring_back, load_task
from composer_replication.types.errors import TaskError

SET_REPORT = "set.json"
"""File of a set's folder that tells the outcome of each source, and which tasks are left out."""
_log = logging.getLogger(__name__)


def builds_in(folder: Path) -> list[Path]:
    """Return the builds that a set of tasks consists of, in order of name; empty where `folder` is no set: where none of its
    folders has a `build.json`, or it has one itself. Folders with tasks beside them count, such as imported ones."""
    if (folder / BUILD_REPORT).exists():
        return []
    found = [
        path for path in sorted(folder.glob("[!.]*")) if (path / BUILD_REPORT).exists() or any(path.glob(f"[!.]*/{MANIFEST}"))
    ]
    return found if any((path / BUILD_REPORT).exists() for path in found) else []


def load_tasks(folder: str | os.PathLike[str]) -> list[Task]:
    """Load every task of a folder that a build has written, or of a set of such folders, in order of name.

    Tasks that a build's index knows are checked against their manifests when their files are first used, others now. Tasks are
    left out that a policy solves too rarely or too often (`tasks.solved`), and of a set also those that its `set.json` leaves
    out, that are damaged, or whose id another task of the set has. The number of those and the first reason are logged.

    Raises:
        TaskError: there are no tasks, or none that is used, `folder` is a task itself, or it is one build and a task is damaged
            or something else is among the tasks.
    """
    root = Path(folder)
    tasks, reasons = read_folder(root)
    solved = solved_tasks(root)
    why_not = {task.spec.task_id: solved.why_not(task.spec.task_id) if solved else "" for task in tasks}
    kept = [task for task in tasks if not why_not[task.spec.task_id]]
    reasons += filter(None, why_not.values())
    if not kept:
        raise TaskError(f"no task of {root} is used: {reasons[0]}", fix="composer tasks filter again, with a wider --keep")
    if reasons:
        count, every = len(reasons), len(reasons) + len(kept)
        _log.warning("%d of %d tasks of %s are left out; the first: %s", count, every, root, reasons[0])
    return kept


def read_folder(root: Path) -> tuple[list[Task], list[str]]:
    """Return the tasks of a folder or set, and why a set leaves others out; what policies solve counts for nothing.

    Raises:
        TaskError: as `load_tasks`.
    """
    builds = builds_in(root)
    if not builds:
        return _load_folder(root), []
    known = left_out_of(root)
    reasons = [f"{path.parent} lies beside the builds of a set" for path in sorted(root.glob(f"[!.]*/{MANIFEST}"))]
    found: dict[str, Task] = {}
    for path, task in (entry for build in builds for entry in _tasks_of(build, known)):
        if isinstance(task, str):
            reasons.append(task)
        elif (other := found.setdefault(task.spec.task_id, task)) is not task:
            reasons.append(f"{path} has the id of {other.root}")
    if not found:
        why = f": {reasons[0]}" if reasons else ""
        raise TaskError(f"{root} is a set without tasks{why}", fix=f"composer tasks build --from LIST --out {root}")
    return list(found.values()), reasons


def left_out_of(folder: Path) -> dict[str, str]:
    """Return, by the path of a task below a set's folder, why the set leaves it out. Raises TaskError for a damaged record."""
    record = read_json(folder / SET_REPORT)
    if record is None:
        return {}
    left = record.get("left_out") if isinstance(record, dict) else None
    if not isinstance(left, dict) or not all(isinstance(reason, str) for reason in left.values()):
        raise TaskError(f"{folder / SET_REPORT} is not a valid record of a set", fix="delete it and build the set again")
    return left


def task_folders(build: Path) -> list[Path]:
    """Return the folders of a build that are tasks, or should be, in order of name. Raises TaskError where it cannot be read."""
    try:
        _restore(build)
        return sorted(path for path in build.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        fix = "name a folder that `composer tasks build` wrote, and make it readable"
        raise TaskError(f"{build} cannot be read ({error.strerror})", fix=fix) from error


def _tasks_of(build: Path, known: Mapping[str, str]) -> Iterator[tuple[Path, Task | str]]:
    """Yield the tasks of a build in a set by their folders, or why the set leaves one out."""
    indexed = indexed_tasks(build)
    for path in task_folders(build):
        reason = known.get(f"{build.name}/{path.name}")
        if reason is None and path.name not in indexed:
            try:
                yield path, load_task(path)
            except TaskError as error:
                yield path, error.message
        else:
            yield path, indexed[path.name] if reason is None else reason


def _restore(root: Path) -> None:
    """Finish what a killed `publish_task` began. Raises OSError."""
    for aside in root.glob(f".*{ASIDE}"):
        if is_task_id(name := aside.name[1:].removesuffix(ASIDE)):  # `..old` would be the folder itself
            bring_back(root / name)


def _load_folder(root: Path) -> list[Task]:
    """Load every task directly below `root`, in order of name; names that begin with a dot are ignored.

    Raises:
        TaskError: there is none, one of them is damaged, something else is among them, or `root` is a task itself.
    """
    found = task_folders(root)
    if (root / MANIFEST).exists():
        raise TaskError(f"{root} is one task, not a folder of tasks", fix=f"name the folder that holds it: {root.parent}")
    strays = [path for path in found if not (path / MANIFEST).exists()]
    if len(strays) == len(found):
        below = next(root.glob(f"*/*/{MANIFEST}"), None)
        fix = f"composer tasks build SOURCE --out {root}" if below is None else f"did you mean {below.parents[1]}?"
        raise TaskError(f"{root} holds no tasks", fix=fix)
    if strays:
        what = f"{strays[0]} is no task (it has no MANIFEST.sha256) and lies among the tasks of {root}"
        raise TaskError(what, fix="move it elsewhere; or, if it was a task, delete it and build again")
    indexed = indexed_tasks(root)
    return [indexed.get(path.name) or load_task(path) for path in found]
