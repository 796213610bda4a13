"""Two actions carried out in real boxes, in forks of one environment."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from composer_replication.actions.agreement import SameAction
from composer_replication.actions.calls import Call
from composer_replication.envs.coding import CodingEnv
from composer_replication.envs.effects import WorkspaceFiles, same_state
from composer_replication.sandbox import open_sandbox
from composer_replication.types import TaskSpec

SOURCE = "def total(prices):\n    raise NotImplementedError\n"
OLD = "raise NotImplementedError"
TESTS = (
    "from shop import total\n\n\ndef test_sum():\n    assert total([1, 2]) == 3\n\n\n"
    "def test_none():\n    assert total([]) == 0\n"
)


@pytest.fixture
def env(tmp_path: Path) -> CodingEnv:
    (tmp_path / "shop.py").write_text(SOURCE)
    (tmp_path / "test_shop.py").write_text(TESTS)
    (tmp_path / "data.bin").write_bytes(b"\xff\xfe")
    spec = TaskSpec(
        task_id="t",
        source="",
        source_digest="",
        instruction="",
        deleted=(),
        fail_to_pass=("test_shop.py::test_sum", "test_shop.py::test_none"),
        pass_to_pass=(),
        editable=("shop.py", "*.txt", "*.bin"),
    )
    return CodingEnv(
        SimpleNamespace(spec=spec, repo=tmp_path), sandbox=open_sandbox(), python=Path(sys.executable), toolset="shell"
    )


def edit(new, old=OLD):
    return [Call("edit_file", {"path": "shop.py", "old": old, "new": new})]


def bash(command):
    return [Call("bash", {"command": command})]


def answer(env, one, other):
    verdict = same_state(env, one, other)
    mirrored = same_state(env, other, one)
    assert verdict == mirrored
    assert verdict.method == "state"
    return verdict.answer


def test_the_same_file_by_another_way(env):
    by_sed = bash(f"sed -i 's/{OLD}/return sum(prices)/' shop.py")
    assert answer(env, edit("return sum(prices)"), by_sed) is SameAction.SAME
    assert answer(env, edit("return (sum(prices))  # all"), by_sed) is SameAction.SAME


def test_tests_tell_other_files_apart(env):
    assert answer(env, edit("return sum(prices)"), edit("return 3")) is SameAction.DIFF
    assert answer(env, edit("return sum(prices)"), bash("touch new.txt")) is SameAction.DIFF


def test_other_code_that_passes_the_same_tests_is_undecided(env):
    assert answer(env, edit("return sum(prices)"), edit("return 0 + sum(prices)")) is SameAction.UNDECIDED


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (bash("ls"), bash("ls -a")),
        (bash("date +%N > now.txt"), bash("date +%N > now.txt")),
        (edit("return sum(prices)"), [*edit("return sum(prices)"), Call("submit", {})]),
        (bash("echo x > a.txt"), bash("echo x > a.txt; false")),
        (bash("printf '\\376' > data.bin"), bash("printf '\\375' > data.bin")),
    ],
    ids=["no change", "another every time", "ends the work", "another ending", "no text"],
)
def test_no_verdict(env, one, other):
    assert answer(env, one, other) is SameAction.UNDECIDED


def test_the_environment_stays_where_it_was(env):
    same_state(env, edit("return sum(prices)"), bash("rm shop.py"))
    assert env.workspace.changes == {}
    assert not env.done


def test_files_of_a_workspace(env):
    files = WorkspaceFiles(lambda: env.workspace)
    assert files["shop.py"] == SOURCE
    assert files.get("data.bin") is None
    assert "nowhere.py" not in files
    assert set(files) == {"shop.py", "test_shop.py", "data.bin"}
    assert len(files) == 3
