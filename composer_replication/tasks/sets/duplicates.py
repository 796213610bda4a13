"""Tasks of a set that delete the same code: vendored copies, and what two versions of one project have in common."""

from __future__ import annotations

import hashlib
from pathlib import Path

from composer_replication.tasks.folders import builds_in, task_folders
from composer_replication.tasks.store import Task, load_task
from composer_replication.types.errors import TaskError


def find_duplicates(out: Path) -> dict[str, str]:
    """Return which tasks of a set delete functions of the same names and bodies as a task of an earlier build, by path below
    `out`, and which one that is. Bodies are compared without regard to white space. Damaged tasks are passed over."""
    seen: dict[bytes, tuple[Path, str]] = {}
    found: dict[str, str] = {}
    for build in builds_in(out):
        for folder in task_folders(build):
            try:
                key = _deleted(load_task(folder))
            except TaskError:
                continue
            first_build, name = seen.setdefault(key, (build, f"{build.name}/{folder.name}"))
            if first_build != build:
                found[f"{build.name}/{folder.name}"] = f"it deletes the code that {name} deletes"
    return found


def _deleted(task: Task) -> bytes:
    names = sorted(deletion.qualname for deletion in task.spec.deleted)
    bodies = sorted(" ".join(body.split()) for body in task.deleted_code())
    return hashlib.sha256("\0".join([*names, *bodies]).encode(errors="surrogatepass")).digest()
