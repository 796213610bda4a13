"""Feature deletion: from a repository with tests to tasks that its own tests can verify."""

from __future__ import annotations

from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.report import BuildEvent, BuildOptions, BuildReport
from composer_replication.tasks.store import Task, load_task

__all__ = [
    "BuildEvent",
    "BuildOptions",
    "BuildReport",
    "Task",
    "build_tasks",
    "load_task",
    "load_tasks",
]
