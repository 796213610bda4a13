"""Builds that do more than replace bodies: whole functions, whole features, strong suites, other words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks import BuildOptions, build_tasks, load_tasks
from composer_replication.tasks.files import tree_files
from composer_replication.tasks.report import BuildReport
from composer_replication.tasks.store import Task
from composer_replication.types.errors import ConfigError, SourceError

WriteProject = Callable[[Mapping[str, str]], Path]

PROJECT = {
    "shop/__init__.py": 'from shop.prices import gross\n\n__all__ = ["gross"]\n',
    "shop/prices.py": """
        import math
        from shop.taxes import rate

        def gross(net):
            '''The price with tax.'''
            return round(net + net * rate(net), 2)

        def floor(net):
            return math.floor(net)
        """,
    "shop/taxes.py": """
        def rate(net):
            if net > 100:
                return band(net)
            return 0.1

        def band(net):
            return 0.2
        """,
    "tests/test_gross.py": """
        from shop import gross

        def test_small():
            assert gross(10) == 11.0

        def test_large():
            assert gross(200) == 240.0
        """,
    "tests/test_floor.py": """
        from shop.prices import floor

        def test_floor():
            assert floor(1.5) is not None
        """,
    "LICENSE": "Permission is hereby granted, free of charge, to any person obtaining a copy of this software\n",
}


def built(project: Path, out: Path, **options: object) -> tuple[BuildReport, dict[str, Task]]:
    report = build_tasks(str(project), out, BuildOptions(trivial=True, forgeable=True, **options))  # type: ignore[arg-type]  # options by name
    tasks = load_tasks(out) if report.tasks else []
    return report, {" ".join(sorted(d.qualname for d in task.spec.deleted)): task for task in tasks}


def text(task: Task, path: str) -> str:
    return (task.repo / path).read_text()


def is_proven(task: Task) -> bool:
    sandbox, python = open_sandbox(), Path(sys.executable)
    rewards = [grade(task.spec, task.repo, files, sandbox=sandbox, python=python).reward for files in (task.gold_files(), {})]
    return rewards == [1.0, 0.0]


@pytest.mark.slow
def test_a_deleted_function_takes_its_imports_with_it(write_project: WriteProject, tmp_path: Path) -> None:
    report, tasks = built(write_project(PROJECT), tmp_path / "out", mode="delete")
    assert set(tasks) == {"gross", "floor", "rate", "band"}
    gross = tasks["gross"]
    assert "gross" not in text(gross, "shop/__init__.py") + text(gross, "shop/prices.py")
    assert "from shop.taxes" not in text(gross, "shop/prices.py")
    assert set(gross.gold_files()) == {"shop/__init__.py", "shop/prices.py"}
    assert gross.spec.fail_to_pass == ("tests/test_gross.py::test_large", "tests/test_gross.py::test_small")
    assert gross.spec.pass_to_pass == ("tests/test_floor.py::test_floor",)
    assert "every import" in gross.spec.instruction
    assert all(is_proven(task) for task in tasks.values())
    (body,) = gross.deleted_code()
    assert body.strip() == "return round(net + net * rate(net), 2)"
    assert gross.provenance["mode"] == "delete"
    assert gross.provenance["licence"] == report.licence == "MIT"


@pytest.mark.slow
def test_where_a_test_file_cannot_be_imported_all_its_tests_come_back(write_project: WriteProject, tmp_path: Path) -> None:
    files = PROJECT | {"tests/test_floor.py": PROJECT["tests/test_floor.py"] + "\n        def test_other():\n            pass\n"}
    _, tasks = built(write_project(files), tmp_path / "out", mode="delete")
    assert tasks["floor"].spec.fail_to_pass == ("tests/test_floor.py::test_floor", "tests/test_floor.py::test_other")


def test_a_whole_feature_goes_from_every_file(write_project: WriteProject, tmp_path: Path) -> None:
    _, tasks = built(write_project(PROJECT), tmp_path / "out", mode="feature", min_group_size=2, group_size=9)
    feature = tasks["band gross rate"]
    assert text(feature, "shop/taxes.py").strip() == ""
    assert len(feature.gold_files()) == 3
    assert is_proven(feature)


@pytest.mark.slow
def test_a_project_that_cannot_be_imported_any_more_is_no_task(write_project: WriteProject, tmp_path: Path) -> None:
    files = PROJECT | {"shop/__init__.py": "from shop.prices import gross\nDEFAULT = gross(1)\n"}
    report, tasks = built(write_project(files), tmp_path / "out", mode="delete")
    assert "gross" not in tasks
    assert [d.reason for d in report.dropped if d.what.endswith("::gross")] == ["no test file can be imported without it"]


@pytest.mark.slow
def test_a_suite_that_cannot_tell_right_from_wrong_is_weak(write_project: WriteProject, tmp_path: Path) -> None:
    files = PROJECT | {
        "shop/weak.py": "def weak(x):\n    if x > 1:\n        return x + 1\n    return x * 2\n",
        "tests/test_weak.py": "from shop.weak import weak\n\ndef test_weak():\n    weak(3)\n    weak(0)\n",
    }
    project = write_project(files)
    _, unfiltered = built(project, tmp_path / "all")
    report, tasks = built(project, tmp_path / "strong", mutants=3)
    assert set(unfiltered) - set(tasks) == {"weak"}
    weak = [d.reason for d in report.dropped]
    assert weak == ["its tests are weak (--mutants, --kill-rate)"]
    facts = tasks["gross"].provenance
    assert facts["mutants"] == 3
    assert facts["mutants_killed"] >= 2


@pytest.mark.slow
def test_the_kind_of_deletion_and_of_instruction_are_part_of_the_task(write_project: WriteProject, tmp_path: Path) -> None:
    project = write_project(PROJECT)
    _, stubs = built(project, tmp_path / "stub", instruction="ambiguous")
    _, deletions = built(project, tmp_path / "delete", mode="delete", instruction="full")
    assert stubs["gross"].spec.instruction.startswith("Something is missing from shop/prices.py")
    assert "    def gross(net)" in deletions["gross"].spec.instruction
    assert stubs["gross"].spec.task_id != deletions["gross"].spec.task_id


def test_licence_and_benchmarks_are_looked_at_before_any_test_runs(write_project: WriteProject, tmp_path: Path) -> None:
    project = write_project(PROJECT)
    with pytest.raises(SourceError, match="licence of folder:shop is MIT"):
        built(project, tmp_path / "out", licences=("ISC",))
    (tmp_path / "names.txt").write_text("someone/shop\n")
    with pytest.raises(SourceError, match="is a repository of a benchmark"):
        built(project, tmp_path / "out2", benchmarks=(tmp_path / "names.txt",))
    assert not (tmp_path / "out" / ".build" / "baseline.json").exists()


@pytest.mark.slow
def test_bytecode_that_validation_used_is_in_no_task(write_project: WriteProject, tmp_path: Path) -> None:
    built(write_project(PROJECT), tmp_path / "out", max_tasks=1)
    compiled = [p for p in tree_files(tmp_path / "out" / ".build" / "compiled") if p.endswith(".pyc")]
    assert {"shop/__pycache__", "tests/__pycache__"} == {p.rpartition("/")[0] for p in compiled}
    assert any("-pytest-" in p for p in compiled), "the tests as pytest rewrote them"
    assert not [p for task in load_tasks(tmp_path / "out") for p in tree_files(task.root) if "__pycache__" in p]


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_group_size": 3, "group_size": 2},
        {"min_difficulty": 0.5, "max_difficulty": 0.4},
        {"mutants": -1},
        {"kill_rate": 1.5},
    ],
)
def test_wrong_options_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        BuildOptions(trivial=True, forgeable=True, **wrong)  # type: ignore[arg-type]  # wrong values by name
