"""Several solved tasks of one source become one: proven like any other, with the hidden checks of all."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_task, load_tasks
from composer_replication.tasks.join import can_be_joined, join_tasks
from composer_replication.types.errors import TaskError

pytestmark = pytest.mark.slow

SHOP = '''\
"""A shop."""


def total(prices):
    """The sum of the prices."""
    result = 0
    for price in prices:
        result += price
    return result


def most(prices):
    """The highest price."""
    best = prices[0]
    for price in prices:
        best = max(best, price)
    return best


def both(prices):
    """Total and highest."""
    return total(prices), most(prices)


def least(prices):
    """The lowest price."""
    return min(prices)
'''
TESTS = {
    "test_total.py": """\
import pytest

from shop import total


@pytest.mark.parametrize(("prices", "expected"), [([1, 2], 3), ([4], 4), ([5, 6, 7], 18)])
def test_total(prices, expected):
    assert total(prices) == expected
""",
    "test_most.py": """\
import pytest

from shop import most


@pytest.mark.parametrize(("prices", "expected"), [([1, 2], 2), ([4, 3], 4)])
def test_most(prices, expected):
    assert most(prices) == expected
""",
    "test_both.py": """\
from shop import both


def test_both():
    assert both([1, 2]) == (3, 2)
""",
    "test_least.py": """\
from shop import least


def test_least():
    assert least([1, 2]) == 1
""",
}
PYTHON = Path(sys.executable)


@pytest.fixture(scope="module", params=["stub", "delete"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop").mkdir()
    (folder / "shop/shop.py").write_text(SHOP)
    for name, text in TESTS.items():
        (folder / "shop" / name).write_text(text)
    out = folder / "tasks"
    build_tasks(str(folder / "shop"), out, BuildOptions(trivial=True, forgeable=True, mode=request.param))
    return {task.spec.deleted[0].qualname: task for task in load_tasks(out)}


def joined(tasks: list[Task], folder: Path) -> Task:
    found = join_tasks(tasks, folder, sandbox=open_sandbox(), python=PYTHON)
    assert isinstance(found, Task), found
    return found


def test_all_functions_are_gone_and_the_grader_was_asked(built: dict[str, Task], tmp_path: Path) -> None:
    parents = [built["total"], built["most"]]
    assert can_be_joined(parents)
    task = joined(parents, tmp_path)
    assert task.spec == load_task(task.root).spec
    assert {d.qualname for d in task.spec.deleted} == {"total", "most"}
    assert all(name in task.spec.instruction for name in ("total", "most"))
    assert set(task.spec.fail_to_pass) == {i for parent in parents for i in parent.spec.fail_to_pass}
    assert set(task.spec.hidden.programs) == {program for parent in parents for program in parent.spec.hidden.programs}
    assert task.provenance["difficulty"] > max(parent.provenance["difficulty"] for parent in parents)
    text = (task.repo / "shop.py").read_text()
    assert "result += price" not in text
    assert "best = max" not in text
    assert task.gold_files()["shop.py"].decode() == SHOP
    sandbox = open_sandbox()
    rewards = [grade(task.spec, task.repo, files, sandbox=sandbox, python=PYTHON).reward for files in (task.gold_files(), {})]
    assert rewards == [1.0, 0.0]
    for parent in parents:  # half of the work is none
        half = grade(task.spec, task.repo, {"shop.py": (parent.repo / "shop.py").read_bytes()}, sandbox=sandbox, python=PYTHON)
        assert half.reward == 0.0


def test_what_is_there_is_not_made_again_unless_it_is_damaged(built: dict[str, Task], tmp_path: Path) -> None:
    pair = [built["total"], built["most"]]
    task = joined(pair, tmp_path)
    made = (task.root / "MANIFEST.sha256").stat().st_mtime_ns
    assert joined(pair, tmp_path).spec == task.spec
    assert (task.root / "MANIFEST.sha256").stat().st_mtime_ns == made
    (task.root / "repo/shop.py").write_text("broken")
    assert joined(pair, tmp_path).spec == task.spec
    assert load_task(task.root).spec == task.spec


def test_a_joined_task_can_be_joined_again(built: dict[str, Task], tmp_path: Path) -> None:
    two = joined([built["total"], built["most"]], tmp_path)
    three = joined([two, built["both"]], tmp_path)
    assert {d.qualname for d in three.spec.deleted} == {"total", "most", "both"}


def test_what_cannot_be_joined(built: dict[str, Task]) -> None:
    total, most = built["total"], built["most"]
    assert not can_be_joined([total, total]), "the same function twice"
    elsewhere = dataclasses.replace(most, spec=dataclasses.replace(most.spec, source_digest="0"))
    assert not can_be_joined([total, elsewhere])
    other_way = dataclasses.replace(most, provenance={**most.provenance, "mode": "feature"})
    assert not can_be_joined([total, other_way])
    without_docstrings = dataclasses.replace(most, provenance={**most.provenance, "keep_docstring": False})
    assert not can_be_joined([total, without_docstrings])
    hopeless = dataclasses.replace(most, spec=dataclasses.replace(most.spec, impossible=True))
    assert not can_be_joined([total, hopeless])
    reversion = dataclasses.replace(most, spec=dataclasses.replace(most.spec, deleted=()))
    assert not can_be_joined([total, reversion])


def test_tests_that_pass_without_the_functions_make_no_task(built: dict[str, Task], tmp_path: Path) -> None:
    nothing = {"fail_to_pass": (), "pass_to_pass": ("test_least.py::test_least",)}
    empty = [dataclasses.replace(t, spec=dataclasses.replace(t.spec, **nothing)) for t in (built["total"], built["most"])]
    assert join_tasks(empty, tmp_path, sandbox=open_sandbox(), python=PYTHON) == "no test fails without it"
    assert list(tmp_path.iterdir()) == []


def test_a_function_that_is_not_there_is_a_damaged_task(built: dict[str, Task], tmp_path: Path) -> None:
    total, most = built["total"], built["most"]
    ghost = dataclasses.replace(most.spec.deleted[0], qualname="ghost")
    with pytest.raises(TaskError, match="ghost"):
        join_tasks(
            [total, dataclasses.replace(most, spec=dataclasses.replace(most.spec, deleted=(ghost,)))],
            tmp_path,
            sandbox=open_sandbox(),
            python=PYTHON,
        )


def test_docstrings_that_were_deleted_stay_deleted(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/shop.py").write_text(SHOP)
    for name, text in TESTS.items():
        (tmp_path / "shop" / name).write_text(text)
    build_tasks(str(tmp_path / "shop"), tmp_path / "tasks", BuildOptions(trivial=True, forgeable=True, keep_docstring=False))
    found = {task.spec.deleted[0].qualname: task for task in load_tasks(tmp_path / "tasks")}
    assert any("The sum of the prices" in code for code in found["total"].deleted_code()), "no hint may tell it"
    task = joined([found["total"], found["most"]], tmp_path / "joined")
    text = (task.repo / "shop.py").read_text()
    assert "The sum of the prices" not in text
    assert "The highest price" not in text


def test_what_no_test_file_can_be_imported_without_is_no_task(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/shop.py").write_text(SHOP)
    for name in ("test_total.py", "test_most.py"):
        (tmp_path / "shop" / name).write_text(TESTS[name])
    build_tasks(str(tmp_path / "shop"), tmp_path / "tasks", BuildOptions(trivial=True, forgeable=True, mode="delete"))
    found = {task.spec.deleted[0].qualname: task for task in load_tasks(tmp_path / "tasks")}
    outcome = join_tasks([found["total"], found["most"]], tmp_path / "joined", sandbox=open_sandbox(), python=PYTHON)
    assert outcome == "no test file can be imported without it"
