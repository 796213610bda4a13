"""Copies of the code of tasks that exist: their sandboxes may show more than those they were built in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from composer_replication.languages.functions import body_of
from composer_replication.sandbox.protocol import Sandbox
from composer_replication.tasks.store import Task
from composer_replication.types.errors import TaskError


def find_task_copies(tasks: Sequence[Task], sandbox: Sandbox, python: Path) -> dict[str, str]:
    """Return where a sandbox with the interpreter `python` can read the code that a task deletes, by task id.

    All tasks are searched for at once.

    Raises:
        SandboxError: the sandbox broke, or the search did not get to its end.
        TaskError: a task's solution cannot be read.
    """
    found: dict[str, str] = {}
    for name in sorted({task.spec.language for task in tasks}):
        found |= _found_copies([task for task in tasks if task.spec.language == name], sandbox, python)
    return found


def _found_copies(tasks: Sequence[Task], sandbox: Sandbox, python: Path) -> dict[str, str]:
    """Do `find_task_copies` for tasks of one language."""
    sources: dict[str, bytes] = {}
    keys: dict[str, list[str]] = {}
    for task in tasks:
        for path, source in task.gold_files().items():
            here = f"{task.spec.source_digest}/{path}"
            sources[here] = source
            keys.setdefault(task.spec.task_id, []).extend(f"{here}::{name}" for name in _removed(task, path, source))
    wanted = sorted({key for mine in keys.values() for key in mine})
    places = tasks[0].language.find_copies(sandbox, python, sources, wanted)
    return {name: places[key] for name, mine in keys.items() for key in mine if key in places}


def shown_tasks(tasks: Sequence[Task], sandbox: Sandbox, python: Path) -> dict[str, TaskError]:
    """Return, by task id, why tasks cannot be used: a sandbox with the interpreter `python` shows their answer, and whoever reads
    it need not write it. Raises as `find_task_copies`."""
    return {
        task_id: TaskError(
            f"the code that {task_id} deletes can be read in a sandbox on this machine ({place})",
            fix="remove that file, name an interpreter without it (--python, tasks.python), or build the tasks again here",
        )
        for task_id, place in find_task_copies(tasks, sandbox, python).items()
    }


def refuse_shown(task: Task, sandbox: Sandbox, python: Path) -> None:
    """Refuse a task whose answer a sandbox shows. Raises TaskError, and SandboxError as `find_task_copies`."""
    for error in shown_tasks([task], sandbox, python).values():
        raise error


def _removed(task: Task, path: str, source: bytes) -> Iterator[str]:
    """Yield names of functions of a solution's file that the task lacks: those it names, or those whose bodies differ."""
    named = {deletion.qualname for deletion in task.spec.deleted if deletion.path == path}
    if named:
        yield from sorted(named)
        return
    left = (task.repo / path).read_bytes() if (task.repo / path).is_file() else b""
    bodies = {function.qualname: body_of(left, function) for function in task.language.find_functions(path, left, True)[0]}
    for function in task.language.find_functions(path, source, True)[0]:
        if bodies.get(function.qualname) != body_of(source, function):
            yield function.qualname
