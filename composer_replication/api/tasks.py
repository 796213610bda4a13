"""Build, load and grade tasks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from composer_replication.sandbox import SandboxKind, open_sandbox
from composer_replication.sandbox.grading.grade import grade as grade_workspace
from composer_replication.tasks import build as builder
from composer_replication.tasks import folders, store
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.interpreters import interpreters_of
from composer_replication.tasks.report import BuildOptions
from composer_replication.types import GradeReport
from composer_replication.types.errors import ConfigError


def build_tasks(
    source: str | os.PathLike[str], out: str | os.PathLike[str] = "tasks", *, max_tasks: int | None = None, **options: Any
) -> list[store.Task]:
    """Turn a repository into tasks by deleting features, or by undoing its commits, and return those that could be proven.

    A build that was interrupted continues, and one that is done is only read.

    Args:
        source: a folder, `pypi:NAME==VERSION`, `npm:NAME@VERSION`, `debian:NAME==VERSION`, or a git URL.
        out: the folder to write.
        max_tasks: stop after this many.
        options: fields of `BuildOptions`, such as `install=True` for the project's own dependencies, or `mode="commits"`.

    Raises:
        ConfigError: an option is wrong.
        TaskError: the repository has no tests that pass, or no function that they cover.
        SandboxError: no sandbox is available.
    """
    known = BuildOptions.__dataclass_fields__
    if unknown := sorted(options.keys() - known.keys()):
        raise ConfigError(f"build_tasks has no option {unknown[0]!r}", fix=f"known: {', '.join(known)}")
    builder.build_tasks(os.fspath(source), Path(out), BuildOptions(max_tasks=max_tasks, **options))
    return folders.load_tasks(out)


def load_tasks(folder: str | os.PathLike[str]) -> list[store.Task]:
    """Return the tasks of a folder. Raises TaskError when there are none or one is damaged."""
    return folders.load_tasks(folder)


def grade(
    task: store.Task | str | os.PathLike[str],
    workspace: str | os.PathLike[str],
    *,
    python: Path | None = None,
    sandbox: SandboxKind = "auto",
) -> GradeReport:
    """Grade any tree as training would: its allow-listed files go into a fresh tree, and the task's own tests decide.

    Args:
        task: a task or its folder.
        workspace: root of the tree, such as an edited copy of `task.repo`.
        python: the interpreter for the tests; by default the one the task was built with.

    Raises:
        ConfigError: `workspace` is no folder, or holds nothing of the task.
        TaskError: the task is damaged.
        SandboxError: no sandbox is available.
    """
    loaded = task if isinstance(task, store.Task) else store.load_task(task)
    root = Path(workspace)
    if not root.is_dir():
        raise ConfigError(f"{root} is not a folder", fix="name the folder that holds the tree")
    if not any((root / path).exists() for path in tree_files(loaded.repo)):
        raise ConfigError(f"{root} has no file of the task's tree", fix=f"name the root of an edited copy of {loaded.repo}")
    interpreter = interpreters_of([loaded], python, sandbox)[loaded.spec.task_id]
    return grade_workspace(loaded.spec, loaded.repo, root, sandbox=open_sandbox(sandbox), python=interpreter)
