"""`composer tasks build | list | show` and `composer grade`, as a user runs them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import composer_here
from rich.console import Console

from composer_replication.cli.grade_cmd import _describe_rejected
from composer_replication.cli.support.task_table import task_table
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.store import load_task

WriteProject = Callable[[Mapping[str, str]], Path]

PROJECT = {
    "tide.py": "def slack(x):\n    return x + 1\n\n\ndef ebb(x): return -x\n",
    "test_tide.py": """
        import tide

        def test_slack():
            assert tide.slack(1) == 2

        def test_ebb():
            assert tide.ebb(1) == -1
        """,
}


@pytest.fixture(scope="module")
def built(write_project: WriteProject, tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = tmp_path_factory.mktemp("cli") / "tasks"
    return composer_here("tasks", "build", write_project(PROJECT), "--out", out, "--forgeable", "--trivial"), out


@pytest.fixture
def task(built: tuple[subprocess.CompletedProcess[str], Path]) -> Path:
    return load_tasks(built[1])[0].root


def test_build_prints_tasks_reasons_and_the_isolation(built: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, out = built
    assert done.returncode == 0, done.stderr
    assert "slack" in done.stdout
    assert "body on the line of its signature or docstring   1" in done.stdout
    assert "1 tasks from 1 of 1 candidates" in done.stdout
    assert json.loads((out / "build.json").read_text())["isolation"] in done.stdout
    *before, search, last = done.stderr.splitlines()
    assert (before, last) == (["fetching the source", "running its tests, twice"], "validating")
    assert search == "searching what sandboxes can read for copies of its code"


def test_a_build_inside_its_repository_is_no_part_of_it(write_project: WriteProject) -> None:
    """The tasks of the first call must not look like a change of the source to the second."""
    repository = write_project(PROJECT)
    for _ in range(2):
        done = composer_here("tasks", "build", ".", "--out", "made/tasks", "--forgeable", "--trivial", cwd=repository)
        assert done.returncode == 0, done.stderr
        assert "1 tasks from 1 of 1 candidates" in done.stdout
    assert sorted(p.name for p in (repository / "made" / "tasks" / ".build" / "pristine").iterdir()) == sorted(PROJECT)


@pytest.mark.slow
def test_a_build_says_when_it_could_not_watch_every_call(write_project: WriteProject, tmp_path: Path) -> None:
    profiled = (
        PROJECT["test_tide.py"] + "\n        def test_profiler():\n            import sys\n            sys.setprofile(None)\n"
    )
    project = write_project({**PROJECT, "test_tide.py": profiled})
    done = composer_here("tasks", "build", project, "--out", tmp_path / "out", "--forgeable", "--trivial")
    assert done.returncode == 0, done.stderr
    [note] = json.loads((tmp_path / "out" / "build.json").read_text())["notes"]
    assert note.startswith("some answers of the tests may count as unknown")
    assert note in " ".join(done.stdout.split())


def test_list_and_show(built: tuple[subprocess.CompletedProcess[str], Path], task: Path) -> None:
    listed, shown = composer_here("tasks", "list", built[1]), composer_here("tasks", "show", task)
    assert (listed.returncode, shown.returncode) == (0, 0)
    assert task.name in listed.stdout
    assert "strong" in listed.stdout
    assert "Implement `slack` in tide.py" in shown.stdout
    assert "+    return x + 1" in shown.stdout
    assert re.search(
        r"hidden checks +\d+ held-out programs, \d+ of them with calls that no test makes; 1 anti-tests; ", shown.stdout
    )


def test_grade_gives_the_reward_its_reasons_and_an_exit_code(task: Path, tmp_path: Path) -> None:
    empty = composer_here("grade", task, "--workspace", task / "repo")
    assert empty.returncode == 10, empty.stderr
    assert "NotImplementedError" in empty.stdout
    assert "reward 0" in empty.stdout
    solved = tmp_path / "solved"
    shutil.copytree(task / "repo", solved)
    shutil.copytree(task / "solution" / "files", solved, dirs_exist_ok=True)
    (solved / "test_tide.py").write_text("")
    full = composer_here("grade", task, "--workspace", solved, "--json")
    assert full.returncode == 0, full.stderr
    report = json.loads(full.stdout)
    assert report["reward"] == 1.0
    assert report["outcomes"] == {"test_tide.py::test_slack": "passed", "test_tide.py::test_ebb": "passed"}
    assert report["rejected"] == ["test_tide.py"]


def test_errors_are_one_sentence_and_a_fix(task: Path, tmp_path: Path, write_project: WriteProject) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(task, copy)
    (copy / "repo" / "tide.py").write_text("")
    cases = {
        ("grade", copy, "--workspace", tmp_path): (3, "repo/tide.py was changed"),
        ("grade", task, "--workspace", tmp_path / "absent"): (2, "is not a folder"),
        ("grade", task, "--workspace", tmp_path): (2, "has no file of the task's tree"),
        ("grade", task, "--workspace", task / "repo", "--python", tmp_path / "absent"): (3, "not a working Python interpreter"),
        ("tasks", "show", tmp_path): (3, "is a folder of tasks, not a task"),
        ("tasks", "show", copy / "task.toml"): (3, "is a file, and a task is a folder"),
        ("tasks", "list", task): (3, "is one task, not a folder of tasks"),
        ("tasks", "list", tmp_path / "absent"): (3, "cannot be read"),
        ("tasks", "build", tmp_path / "absent", "--out", tmp_path / "out", "--forgeable", "--trivial"): (
            3,
            "is neither a folder",
        ),
    }
    for arguments, (code, text) in cases.items():
        done = composer_here(*arguments)
        assert done.returncode == code, done.stderr
        assert text in done.stderr
        assert "fix: " in done.stderr
        assert "Traceback" not in done.stderr


def test_no_task_ends_with_3_and_says_why(tmp_path: Path, write_project: WriteProject) -> None:
    project = write_project({**PROJECT, "tide.py": "def slack(x): return x + 1\ndef ebb(x): return -x\n"})
    done = composer_here("tasks", "build", project, "--out", tmp_path / "out", "--forgeable", "--trivial")
    assert done.returncode == 3
    assert "body on the line of its signature or docstring   2" in done.stdout
    assert "no task of folder:shop could be validated" in done.stderr


def test_wrong_usage_is_2_and_named(task: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cases = {
        ("tasks", "build", tmp_path, "--out", tmp_path / "file"): "is a file",
        ("tasks", "build", tmp_path, "--out", tmp_path / "out", "--sandbox", "dokcer"): "no sandbox kind 'dokcer'",
        ("grade", task, "--workspace", task / "repo", "--sandbox", "dokcer"): "namespaces, bubblewrap, landlock, docker",
        ("tasks", "build", tmp_path, "--out", tmp_path): "the source itself",
        ("traces", "import", tmp_path, "--out", tmp_path / "file"): "is a file",
    }
    for arguments, text in cases.items():
        done = composer_here(*arguments)
        assert done.returncode == 2, done.stderr
        assert text in " ".join(done.stderr.replace("│", "").split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_tests_that_fail_by_themselves_are_named(write_project: WriteProject, tmp_path: Path) -> None:
    broken = "".join(f"\ndef test_broken_{n}():\n    assert {n} == 9\n" for n in range(4))
    tests = "import tide\n" + "".join(f"\ndef test_{n}():\n    assert tide.slack({n}) == {n + 1}\n" for n in range(5)) + broken
    done = composer_here(
        "tasks", "build", write_project({**PROJECT, "test_tide.py": tests}), "--out", tmp_path / "out", "--forgeable", "--trivial"
    )
    assert done.returncode == 0, done.stderr
    assert "fail before anything is deleted, and count for nothing: 4\n  test_tide.py::test_broken_0: " in done.stdout
    assert "  test_tide.py::test_broken_2: " in done.stdout
    assert "\n  and 1 more, in build.json\n" in done.stdout
    assert len(json.loads((tmp_path / "out" / "build.json").read_text())["failing"]) == 4


def test_an_impossible_task_is_marked_in_lists(capsys: pytest.CaptureFixture[str], task: Path) -> None:
    loaded = load_task(task)
    impossible = replace(loaded, spec=replace(loaded.spec, impossible=True))
    Console(width=200).print(task_table([loaded, impossible]))
    lines = [line for line in capsys.readouterr().out.splitlines() if task.name in line]
    assert [f"{task.name} (impossible)" in line for line in lines] == [False, True]


def test_what_is_not_graded_is_told_in_one_line(task: Path, tmp_path: Path) -> None:
    tree = task / "repo"
    shutil.copytree(tree, tmp_path / "ws")
    (tmp_path / "ws" / "test_tide.py").rename(tmp_path / "ws" / "test_ebb.py")
    for number in range(20):
        (tmp_path / "ws" / f"note{number:02}.md").write_text("")
    done = composer_here("grade", task, "--workspace", tmp_path / "ws")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("changed but not graded"))
    assert "count): test_tide.py (renamed to test_ebb.py), note00.md (new), " in line
    assert line.endswith("note08.md (new) and 11 more (--json has all)")
    (tmp_path / "ws" / "test_ebb.py").write_text("")
    assert _describe_rejected(["test_ebb.py", "test_tide.py"], tree, tmp_path / "ws") == [
        "test_tide.py (deleted)",
        "test_ebb.py (new)",
    ]


@pytest.mark.parametrize("place", [".", "x", ".."])
def test_tasks_are_not_exported_over_themselves(
    built: tuple[subprocess.CompletedProcess[str], Path], tmp_path: Path, place: str
) -> None:
    """What is written replaces a folder of the task's name, which here would be the task."""
    tasks = tmp_path / "tasks"
    shutil.copytree(built[1], tasks)
    before = sorted(tasks.rglob("*"))
    for words in (("export", tasks), ("import", "harbor", tasks)):
        done = composer_here("tasks", *words, "--out", tasks / place)
        assert done.returncode == 2
        assert "lie in one another" in done.stderr
    assert sorted(tasks.rglob("*")) == before
