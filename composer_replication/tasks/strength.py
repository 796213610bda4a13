"""Tasks whose reward can be forged, left out unless they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from composer_replication.tasks.store import Task, load_tasks
from composer_replication.types.errors import TaskError


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
    if tasks and not kept:
        weakness = tasks[0].spec.hidden.weakness
        raise TaskError(
            f"every task of {where} is forgeable (the first because {weakness}): a program that does not implement the feature "
            "can be rewarded",
            fix="build tasks without --forgeable; or accept it: tasks.forgeable = true in a run file, --forgeable on the "
            "command line, forgeable=True in Python",
        )
    return kept
