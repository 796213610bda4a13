"""Tasks whose reward can be forged, left out unless they are asked for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.store import Task
from composer_replication.types.errors import TaskError

_log = logging.getLogger(__name__)


def load_strong_tasks(folder: Path, *, forgeable: bool = False) -> list[Task]:
    """Return the tasks of a folder whose reward rests on held-out programs that every trivial body fails.

    Args:
        forgeable: return the others too.

    Raises:
        TaskError: a task is damaged, there are none, or all of them are forgeable.
    """
    return strong_tasks(load_tasks(folder), str(folder), forgeable=forgeable)


def strong_tasks(tasks: Sequence[Task], where: str, *, forgeable: bool = False) -> list[Task]:
    """Return those of `tasks` that are not forgeable, or all of them with `forgeable`.

    Raises:
        TaskError: none is left.
    """
    kept = [task for task in tasks if forgeable or not task.spec.forgeable]
    count = sum(task.spec.forgeable for task in tasks)
    if count and kept:
        what = "used: a program that does not implement the feature can be rewarded" if forgeable else "left out"
        _log.warning("%d of %d tasks of %s are forgeable and %s (composer tasks list says why)", count, len(tasks), where, what)
    if tasks and not kept:
        weakness = tasks[0].spec.hidden.weakness
        raise TaskError(
            f"every task of {where} is forgeable (the first because {weakness}): a program that does not implement the feature "
            "can be rewarded",
            fix="take other tasks (composer tasks build leaves these out); or accept it: tasks.forgeable = true in a run file, "
            "--forgeable on the command line, forgeable=True in Python",
        )
    return kept
