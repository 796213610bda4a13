"""`composer tasks filter`: tasks that a policy solves too rarely or too often are left out wherever a folder is loaded."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from in_process import composer_here

from composer_replication.tasks import BuildOptions, build_tasks, load_tasks
from composer_replication.tasks.solved import SOLVED, SolvedTasks, solved_tasks, write_solved
from composer_replication.types.errors import ConfigError, TaskError

PROJECT = {
    "tide.py": "".join(f"def slack{n}(x):\n    grown = x + {n}\n    return grown * {n + 7}\n\n\n" for n in range(4)),
    "test_tide.py": "import tide\n\n\n"
    + "".join(f"def test_{n}():\n    assert tide.slack{n}(1) == {(1 + n) * (n + 7)}\n\n\n" for n in range(4)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, write_project: Callable[[Mapping[str, str]], Path]) -> Path:
    out = tmp_path_factory.mktemp("made") / "tasks"
    build_tasks(str(write_project(PROJECT)), out, BuildOptions(trivial=True, forgeable=True))
    return out


@pytest.fixture
def tasks(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "tasks"))


def results(folder: Path, **rates: dict[str, float]) -> Path:
    found = [{"policy": name, "pass_rates": of_policy} for name, of_policy in rates.items()]
    (folder / "results.json").write_text(json.dumps(found))
    return folder / "results.json"


def test_tasks_are_left_out_that_are_solved_too_rarely_or_too_often(
    tasks: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    never, sometimes, always, untried = (task.spec.task_id for task in load_tasks(tasks))
    file = results(tmp_path, small={never: 0.0, sometimes: 0.5, always: 1.0, "of-another-folder": 0.5})
    done = composer_here("tasks", "filter", tasks, "--results", file)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "small passes 1 of 4 tasks too rarely and 1 too often; 2 are kept",
        "1 of these were not tried",
    ]
    with caplog.at_level(logging.WARNING):
        assert [task.spec.task_id for task in load_tasks(tasks)] == [sometimes, untried]
    assert f"2 of 4 tasks of {tasks} are left out; the first: {never} is passed in 0% of the rollouts of small" in caplog.text

    assert composer_here("tasks", "filter", tasks, "--results", file, "--keep", "0-1").returncode == 0
    assert len(load_tasks(tasks)) == 4


def test_a_set_is_filtered_at_its_root(tasks: Path, tmp_path: Path) -> None:
    whole = tmp_path / "set"
    whole.mkdir()
    tasks.rename(whole / "tide")
    first, *others = (task.spec.task_id for task in load_tasks(whole))
    write_solved(whole, SolvedTasks(policy="p", least=0.05, most=0.95, rates={first: 0.0}))
    assert [task.spec.task_id for task in load_tasks(whole)] == others


def test_nothing_left_is_an_error(tasks: Path) -> None:
    rates = {task.spec.task_id: 1.0 for task in load_tasks(tasks)}
    write_solved(tasks, SolvedTasks(policy="p", least=0.05, most=0.95, rates=rates))
    with pytest.raises(TaskError, match="is passed in 100% of the rollouts of p") as caught:
        load_tasks(tasks)
    assert "wider --keep" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("written", "options", "said"),
    [
        ("[]", (), "has 0 policies"),
        ('[{"policy": "a", "pass_rates": {}}, {"policy": "b", "pass_rates": {}}]', (), "give --policy one of: a, b"),
        ('[{"policy": "a", "pass_rates": {}}]', ("--policy", "c"), "has no policy 'c'"),
        ('[{"policy": "a", "pass_rates": {}}]', (), "has no rollout of a task of"),
        ('[{"policy": "a", "pass_rates": {"x": 2}}]', (), "holds no results of an evaluation"),
        ('{"policy": 1}', (), "holds no results of an evaluation"),
        ("[" * 3000, (), "holds no results of an evaluation"),
        ('[{"policy": "a", "pass_rates": {}}]', ("--keep", "0.9-0.1"), "between 0.9 and 0.1"),
        ('[{"policy": "a", "pass_rates": {}}]', ("--keep", "often"), "--keep often is not a range"),
    ],
)
def test_wrong_results_are_named(tasks: Path, tmp_path: Path, written: str, options: tuple[str, ...], said: str) -> None:
    (tmp_path / "results.json").write_text(written)
    done = composer_here("tasks", "filter", tasks, "--results", tmp_path / "results.json", *options)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert not (tasks / SOLVED).exists()


@pytest.mark.parametrize("damaged", ["", "[1]", "{}", '{"policy": "p", "least": 0, "most": 1, "rates": {"a": "often"}}'])
def test_a_damaged_record_is_named(tasks: Path, damaged: str) -> None:
    (tasks / SOLVED).write_text(damaged)
    with pytest.raises(TaskError, match=SOLVED):
        load_tasks(tasks)


def test_a_record_is_what_was_written(tmp_path: Path) -> None:
    record = SolvedTasks(policy="p", least=0.1, most=0.9, rates={"a": 0.25})
    write_solved(tmp_path, record)
    assert solved_tasks(tmp_path) == record
    assert solved_tasks(tmp_path / "elsewhere") is None
    with pytest.raises(ConfigError, match=r"between 0\.9 and 0\.1"):
        SolvedTasks(policy="p", least=0.9, most=0.1, rates={})
