"""Tasks, rollouts and grades from Python are those of the commands."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import composer_replication as composer
from composer_replication.quickstart.language import project_path
from composer_replication.types.errors import ConfigError

pytestmark = pytest.mark.slow


def test_build_evaluate_and_grade(tmp_path: Path) -> None:
    out = tmp_path / "tasks"
    tasks = composer.build_tasks(project_path("harbour"), out=out, max_tasks=2, trivial=True, packages=("harbour/berths.py",))
    assert [task.spec.task_id for task in composer.load_tasks(out)] == [task.spec.task_id for task in tasks]
    assert composer.evaluate(tasks, policy="oracle").pass_at_1 == 1.0
    nothing = composer.evaluate(out, policy="noop", samples=2)
    assert (nothing.pass_at_1, len(nothing.trajectories)) == (0.0, 4)
    assert {row["task_id"] for row in nothing.rows} == {task.spec.task_id for task in tasks}
    work = tmp_path / "work"
    shutil.copytree(tasks[0].repo, work)
    assert composer.grade(tasks[0], work).reward == 0.0
    for path, content in tasks[0].gold_files().items():
        (work / path).write_bytes(content)
    assert composer.grade(tasks[0].root, work).reward == 1.0
    with pytest.raises(ConfigError, match="no option 'max_task'"):
        composer.build_tasks(project_path("harbour"), out=out, max_task=2)


def test_rollouts_of_a_model(world: Any) -> None:
    found = composer.rollout(world.tasks, str(world.policy), group_size=2, turn_tokens=20, max_turns=2, context_tokens=900)
    assert len(found) == 2 * len(composer.load_tasks(world.tasks))
    assert all(len(one.turns) <= 2 for one in found)
