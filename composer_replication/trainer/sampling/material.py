"""Material for hints about a run's tasks, read when a task is first asked for: a run may have thousands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TypeVar

from composer_replication.envs.source import AnyTask

_T = TypeVar("_T")
_KEPT = 512
"""Number of tasks whose material is kept; that of others is read again."""


class TaskMaterial(Mapping[str, _T]):
    """A mapping from task ids to what `read` returns for the task.

    Args:
        tasks: by id; tasks that are added later are known too.
        read: makes it of a task.
    """

    def __init__(self, tasks: Mapping[str, AnyTask], read: Callable[[AnyTask], _T]) -> None:
        self._tasks = tasks
        self._read = lru_cache(maxsize=_KEPT)(lambda name: read(tasks[name]))

    def __getitem__(self, name: str) -> _T:
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)
