"""Rollouts of many tasks, kept part by part: an interrupted call makes only those that are missing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from composer_replication.envs.source import AnyTask
from composer_replication.observe.files import read_lines, replace_file, storage_errors
from composer_replication.observe.run_dir import trajectory_row
from composer_replication.types import Group, Trajectory, Unscored, from_json

_AT_ONCE = 64
"""Rollouts of a part, as long as a task has no more: what is lost when the process dies."""


async def kept_rollouts(
    tasks: Sequence[AnyTask],
    siblings: int,
    roll_out: Callable[[Sequence[AnyTask]], Awaitable[list[Group]]],
    folder: Path,
    *,
    whole: bool = False,
) -> list[Group]:
    """Roll out all tasks, some at a time, and return one group per task, in order.

    A part of which nothing could be graded is not kept: it is rolled out again by the next call.

    Args:
        siblings: rollouts of a task that `roll_out` makes.
        folder: holds a file per part; it belongs to this list of tasks and this way of rolling out (`folder_of`).
        whole: keep no part in which any rollout could not be graded.

    Raises:
        StorageError: a part cannot be written, or is damaged.
    """
    found: list[Group] = []
    size = max(1, _AT_ONCE // siblings)
    for start in range(0, len(tasks), size):
        path = folder / f"part_{start:05d}.jsonl"
        if path.exists():
            found += _grouped([from_json(Trajectory, line) for line in read_lines(path, appended=False)])
            continue
        groups = [_without_experts(group) for group in await roll_out(tasks[start : start + size])]
        trajectories = [t for group in groups for t in group.trajectories]
        unscored = [isinstance(t.reward, Unscored) for t in trajectories]
        if not (any(unscored) if whole else all(unscored)):
            with storage_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, (json.dumps(trajectory_row(t)).encode() + b"\n" for t in trajectories))
        found += groups
    return found


def folder_of(parent: Path, name: str, made_of: Mapping[str, object]) -> Path:
    """Return the folder of rollouts that everything in `made_of`, plain JSON, decides."""
    digest = hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode()).hexdigest()
    return parent / f"{name}-{digest[:16]}"


def _without_experts(group: Group) -> Group:
    """Return the group as it will be read back."""
    return replace(group, trajectories=tuple(replace(t, experts=None) for t in group.trajectories))


def _grouped(trajectories: Sequence[Trajectory]) -> list[Group]:
    by_task: dict[str, list[Trajectory]] = {}
    for one in trajectories:
        by_task.setdefault(one.task_id, []).append(one)
    return [
        Group(group_id=each[0].trajectory_id.rpartition("/")[0], task_id=task, trajectories=tuple(each))
        for task, each in by_task.items()
    ]
