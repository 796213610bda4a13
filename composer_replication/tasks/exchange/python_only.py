"""Formats whose images and graders are made for Python."""

from __future__ import annotations

from collections.abc import Iterable

from composer_replication.tasks.store import Task
from composer_replication.types.errors import TaskError


def refuse_other_languages(tasks: Iterable[Task]) -> None:
    """Raise TaskError for a task in another language than Python."""
    other = next((task for task in tasks if task.spec.language != "python"), None)
    if other is not None:
        raise TaskError(
            f"{other.spec.task_id} is a task in {other.spec.language}, and only tasks in Python can be exported",
            fix="export folders of Python tasks alone; composer tasks push shares tasks in every language",
        )
