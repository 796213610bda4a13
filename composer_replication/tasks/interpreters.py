"""The interpreter that runs a task's tests: the one that the build in its folder used."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from composer_replication.sandbox import SandboxKind
from composer_replication.sandbox.opening import remote_python
from composer_replication.tasks.files import read_json
from composer_replication.tasks.report import BUILD_REPORT
from composer_replication.tasks.store import Task
from composer_replication.types.errors import TaskError

_log = logging.getLogger(__name__)


def build_python(folder: Path, sandbox: SandboxKind = "auto", other: str = "") -> Path:
    """Return the interpreter that the tasks of `folder` were built with, by its `build.json`; this process's own when there is
    none.

    With a sandbox on another machine it is that machine's.

    Args:
        other: instead of the build's, the interpreter that `build.json` names for some tasks (`BuildReport.pythons`).

    Raises:
        SandboxError: that machine cannot be reached.
        TaskError: `build.json` cannot be read, or its interpreter is gone and `folder` has no own environment.
    """
    if (there := remote_python(sandbox)) is not None:
        return there
    record = read_json(folder / BUILD_REPORT)
    if record is None:
        return Path(sys.executable)
    try:
        recorded = folder / (other or record["python"])  # the folder counts where the path is relative to it
    except (KeyError, TypeError) as error:
        raise TaskError(f"{folder / BUILD_REPORT} names no interpreter", fix="restore it, or build the tasks again") from error
    for python in (recorded, *([] if other else [folder / ".venv" / "bin" / "python"])):  # the second in a folder that was moved
        if python.exists():
            return python
    raise TaskError(
        f"{folder} was built with {recorded}, which is gone",
        fix="name an interpreter that has what the tests need: --python PATH, or tasks.python in a run file",
    )


def interpreters_of(tasks: Sequence[Task], python: Path | None = None, sandbox: SandboxKind = "auto") -> dict[str, Path]:
    """Return the interpreter of each task by its id; tasks of several builds may have different ones.

    A build whose interpreter is gone is named in a warning, and its tasks have no entry.

    Args:
        python: takes the place of every task's own.

    Raises:
        SandboxError: the machine of a remote sandbox cannot be reached.
        TaskError: no task has an interpreter.
    """
    if python is not None:
        return {task.spec.task_id: python.absolute() for task in tasks}
    found: dict[tuple[Path, str], Path] = {}
    gone: list[TaskError] = []
    folders = {task.spec.task_id: task.root.resolve().parent for task in tasks}
    named = {folder: _named(folder) for folder in dict.fromkeys(folders.values())}
    places = {task_id: (folder, named[folder].get(task_id, "")) for task_id, folder in folders.items()}
    for folder, other in dict.fromkeys(places.values()):
        try:
            found[folder, other] = build_python(folder, sandbox, other).absolute()
        except TaskError as error:
            gone.append(error)
    if gone and not found:
        raise gone[0]
    for missing in gone:
        _log.warning("left out: %s; %s", missing.message, missing.fix)
    return {task_id: found[place] for task_id, place in places.items() if place in found}


def _named(folder: Path) -> Mapping[str, str]:
    """Return by id the interpreters of a folder's tasks that have another one than its build."""
    record = read_json(folder / BUILD_REPORT)
    found = record.get("pythons") if isinstance(record, dict) else None
    return {str(name): str(python) for name, python in found.items()} if isinstance(found, dict) else {}
