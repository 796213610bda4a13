"""Feature deletion: from a repository with tests to tasks that its own tests can verify."""

from __future__ import annotations

from composer_replication.tasks.store import Task, load_task, load_tasks

__all__ = ["Task", "load_task", "load_tasks"]
