"""Rollouts of many tasks, kept part by part: an interrupted call makes only those that are missing."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from composer_replication.envs.source import AnyTask
from composer_replication.observe.files import read_lines, replace_file, storage_errors
from composer_replication.observe.run_dir import trajectory_row
from composer_replication.types import Group, Trajectory, from_json

_AT_ONCE = 32
"""Tasks of a part: what is lost when the process dies."""


async def kept_rollouts(
    tasks: Sequence[AnyTask], roll_out: Callable[[Sequence[AnyTask]], Awaitable[list[Group]]], folder: Path
) -> list[Group]:
    """Roll out all tasks, some at a time, and return one group per task, in order.

    Args:
        folder: holds a file per part; it belongs to this list of tasks and this way of rolling out.

    Raises:
        StorageError: a part cannot be written, or is damaged.
    """
    found: list[Group] = []
    for start in range(0, len(tasks), _AT_ONCE):
        path = folder / f"part_{start:05d}.jsonl"
        if path.exists():
            found += _grouped([from_json(Trajectory, line) for line in read_lines(path, appended=False)])
            continue
        groups = await roll_out(tasks[start : start + _AT_ONCE])
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(trajectory_row(t)).encode() + b"\n" for group in groups for t in group.trajectories))
        found += groups
    return found


def _grouped(trajectories: Sequence[Trajectory]) -> list[Group]:
    by_task: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        by_task.setdefault(one.task_id, []).append(one)
    return [
        Group(group_id=each[0].trajectory_id.rpartition("/")[0], task_id=task, trajectories=tuple(each))
        for task, each in by_task.items()
    ]
