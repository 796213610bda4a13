"""Thousands of tasks are loaded from their builds' indexes, and a file that is used was compared with its manifest first."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.tasks import index
from composer_replication.tasks.files import link_tree
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.index import StoredChecks, indexed_tasks, write_index
from composer_replication.tasks.store import Task, load_task, write_task
from composer_replication.types import Deletion, TaskSpec, to_json
from composer_replication.types.errors import StorageError, TaskError
from composer_replication.types.held_out_checks import AntiTest, HeldOutChecks, HeldOutProgram

SPEC = TaskSpec(
    task_id="tides-slack",
    source="folder:tides",
    source_digest="0" * 64,
    instruction="Implement `slack`.",
    deleted=(Deletion(path="tides.py", qualname="slack", lines=1),),
    fail_to_pass=("test_tides.py::test_slack",),
    pass_to_pass=(),
    editable=("tides.py",),
    hidden=HeldOutChecks(
        programs=(HeldOutProgram(steps="[[1, 2]]", expected="[null]", uses="tides.py::slack", new_calls=1),),
        anti_tests=(AntiTest(test="test_tides.py::test_slack", expectation=0),),
        untold=2,
    ),
)


@pytest.fixture
def build(tmp_path: Path) -> Path:
    pristine = tmp_path / "build" / ".build" / "pristine"
    pristine.mkdir(parents=True)
    for name in ("tides.py", "test_tides.py", "gone.py"):
        (pristine / name).write_text(f"# {name}\n")
    for name in ("tides-slack", "tides-flow"):
        write_task(
            replace(SPEC, task_id=name),
            tmp_path / "build" / name,
            pristine=pristine,
            deleted={"tides.py": b"", "gone.py": None},
            tests={"test_tides.py": b"# other\n"},
            provenance={"difficulty": 0.5},
        )
    write_index(tmp_path / "build")
    return tmp_path / "build"


def test_an_indexed_task_is_the_one_in_its_folder(build: Path) -> None:
    flow, slack = load_tasks(build)
    assert slack.indexed
    assert slack == load_task(slack.root) == load_task(slack.root)
    assert load_task(flow.root) == flow
    assert isinstance(slack.spec.hidden, StoredChecks)
    assert slack.spec.hidden == SPEC.hidden
    assert SPEC.hidden == slack.spec.hidden
    assert slack.spec.hidden != HeldOutChecks(weakness="x")
    assert hash(slack.spec) == hash(load_task(slack.root).spec)
    assert to_json(slack.spec) == to_json(SPEC)
    assert slack.provenance == {"difficulty": 0.5}


def test_copies_of_the_checks_are_plain(build: Path) -> None:
    """They go to machines that have no such folder."""
    task = load_tasks(build)[1]
    sent = pickle.dumps(task.spec)
    assert replace(task.spec.hidden, untold=7) == replace(SPEC.hidden, untold=7)
    assert type(replace(task.spec.hidden, untold=7)) is HeldOutChecks
    shutil.rmtree(build)
    assert type(pickle.loads(sent).hidden) is HeldOutChecks
    assert pickle.loads(sent) == SPEC


def test_a_list_reads_manifests_and_nothing_else(build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr(index, "load_task", never)
    assert [task.spec.task_id for task in load_tasks(build)] == ["tides-flow", "tides-slack"]


@pytest.mark.parametrize("use", [lambda task: task.repo, Task.gold_files, lambda task: task.spec.hidden.programs, Task.check])
def test_a_damaged_file_is_named_when_the_task_is_used(build: Path, use: object) -> None:
    for task in load_tasks(build):
        use(task)  # type: ignore[operator]
    path = build / "tides-slack" / "repo" / "tides.py"
    manifest = build / "tides-slack" / "MANIFEST.sha256"
    path.write_text("cheat")
    manifest.touch()  # a process looks once at each version of a task
    flow, slack = load_tasks(build)
    use(flow)  # type: ignore[operator]
    with pytest.raises(TaskError, match=r"repo/tides.py was changed"):
        use(slack)  # type: ignore[operator]


def test_a_line_that_does_not_hold_is_passed_over(build: Path) -> None:
    """Of a task built anew, torn, of another release, or forged: the folder itself decides."""
    file = build / ".build" / "index.jsonl"
    flow, slack = file.read_text().splitlines()
    forged = json.loads(flow) | {"manifest": "0" * 64, "weakness": ""}
    for text in (
        f"{json.dumps(forged)}\n{slack}\n",
        f"{slack}\n{flow[:50]}",
        f'{slack}\n[]\n{{}}\n{{"folder": "../x"}}\n',
        f"{slack}\n",
    ):
        file.write_text(text)
        assert list(indexed_tasks(build)) == ["tides-slack"]
        assert [(task.spec.task_id, bool(task.indexed)) for task in load_tasks(build)] == [
            ("tides-flow", False),
            ("tides-slack", True),
        ]
    file.unlink()
    assert [task.indexed for task in load_tasks(build)] == [None, None]


@pytest.mark.parametrize("lie", [{"weakness": "none"}, {"provenance": {"difficulty": 0.1}}, {"task": {"fail_to_pass": []}}])
def test_an_index_that_tells_something_else_than_the_task_is_found_out(build: Path, lie: dict[str, dict[str, object]]) -> None:
    """What was listed, and what strength it had, is what is trained on."""
    file = build / ".build" / "index.jsonl"
    flow, slack = map(json.loads, file.read_text().splitlines())
    forged = {**slack, **lie, "task": {**slack["task"], **lie.get("task", {})}}
    file.write_text(f"{json.dumps(flow)}\n{json.dumps(forged)}\n")
    flow_task, slack_task = load_tasks(build)
    assert flow_task.repo.is_dir()
    with pytest.raises(TaskError, match="is not what the index of its folder says"):
        slack_task.check()
    with pytest.raises(TaskError, match="is not what the index of its folder says"):
        replace(slack_task, spec=replace(slack_task.spec, instruction="Other words.")).gold_files()
    assert replace(flow_task, spec=replace(flow_task.spec, instruction="Other words.")).repo.is_dir(), "words may change"


def test_no_pipe_is_waited_for_and_no_link_followed(build: Path) -> None:
    manifest, file = build / "tides-flow" / "MANIFEST.sha256", build / ".build" / "index.jsonl"
    manifest.unlink()
    os.mkfifo(manifest)
    assert list(indexed_tasks(build)) == ["tides-slack"]
    file.rename(build / "elsewhere")
    file.symlink_to(build / "elsewhere")
    assert indexed_tasks(build) == {}


def test_a_damaged_task_has_no_line(build: Path) -> None:
    (build / "tides-flow" / "repo" / "tides.py").write_text("cheat")
    write_index(build)
    assert list(indexed_tasks(build)) == ["tides-slack"]


def test_a_tree_is_on_disk_once(build: Path) -> None:
    """What a task changes has its own bytes, and the source keeps its own."""
    pristine = build / ".build" / "pristine"
    (pristine / "shared.py").write_text("# shared\n")
    tasks = [write_task(SPEC, build / name, pristine=pristine, deleted={"tides.py": b""}) for name in ("a", "b")]
    assert {(task.repo / "shared.py").stat().st_ino for task in tasks} == {(pristine / "shared.py").stat().st_ino}
    assert (pristine / "tides.py").read_text() == "# tides.py\n"
    assert (build / "tides-slack" / "repo" / "test_tides.py").read_text() == "# other\n"
    assert (pristine / "test_tides.py").read_text() == "# test_tides.py\n"
    assert not (build / "tides-slack" / "repo" / "gone.py").exists()
    assert (pristine / "gone.py").exists()


def test_a_tree_is_copied_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.py").write_text("a")
    why = [errno.EXDEV]

    def link(source: str, target: str) -> None:
        raise OSError(why[0], os.strerror(why[0]), target)

    monkeypatch.setattr(os, "link", link)
    link_tree(tmp_path / "tree", tmp_path / "copy")
    assert (tmp_path / "copy" / "a.py").read_text() == "a"
    why[0] = errno.ENOSPC
    with pytest.raises(StorageError, match="No space left"):
        link_tree(tmp_path / "tree", tmp_path / "full")
