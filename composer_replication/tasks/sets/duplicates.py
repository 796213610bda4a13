"""Tasks of a set that delete the same code: vendored copies, and what two versions of one project have in common."""

from __future__ import annotations

import hashlib
from pathlib import Path

from composer_replication.tasks.folders import builds_in, task_folders
from composer_replication.tasks.store import Task, load_task
from composer_replication.types.errors import TaskError


def find_duplicates(out: Path) -> dict[str, str]:
    """Return which tasks of a set delete functions of the same names and bodies as a task of another build, by path below `out`,
    and which one that is.

    Of such tasks the first one is kept that is neither forgeable nor impossible, or else the first. Bodies are compared without
    regard to white space. Damaged tasks are passed over.
    """
    alike: dict[bytes, list[Task]] = {}
    for folder in (folder for build in builds_in(out) for folder in task_folders(build)):
        try:
            task = load_task(folder)
        except TaskError:
            continue
        alike.setdefault(_deleted(task), []).append(task)
    found: dict[str, str] = {}
    for tasks in alike.values():
        kept = min(tasks, key=lambda task: task.spec.forgeable or task.spec.impossible)
        others = [task for task in tasks if task.root.parent != kept.root.parent]
        found |= {_path(task): f"it deletes the code that {_path(kept)} deletes" for task in others}
    return found


def _path(task: Task) -> str:
    return f"{task.root.parent.name}/{task.root.name}"


def _deleted(task: Task) -> bytes:
    names = sorted(deletion.qualname for deletion in task.spec.deleted)
    bodies = sorted(" ".join(body.split()) for body in task.deleted_code())
    return hashlib.sha256("\0".join([*names, *bodies]).encode(errors="surrogatepass")).digest()
