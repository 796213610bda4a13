"""A stored task reads back exactly, and any damage to its folder is named."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.spec import is_task_id, spec_of
from composer_replication.tasks.store import Task, load_task, publish_task, write_task
from composer_replication.types import Deletion, TaskSpec, to_json
from composer_replication.types.errors import StorageError, TaskError

SPEC = TaskSpec(
    task_id="tides-slack-12ab",
    source="folder:tides",
    source_digest="0" * 64,
    instruction="Implement `slack` in tides.py: its body was removed. Make its tests pass.",
    deleted=(Deletion(path="tides.py", qualname="slack", lines=1),),
    fail_to_pass=('tests/test_a.py::test_x["q\\u00e9\x7f\\\\-\U0001f600]', "tests/test_a.py::test_y"),
    pass_to_pass=(),
    editable=("tides.py",),
    python_path=("src", "."),
    test_timeout_s=12.5,
)
TIDES = '''class Tide:
    @property
    def slack(self) -> int:
        """No flow."""
        low = self.low()
        return low

    def low(self) -> int:
        return 0


def ebb(x: int) -> int:
    # back
    return -x
'''
GOLD = b"def slack(a):\r\n    return a"
DELETED = b"def slack(a):\r\n    raise NotImplementedError"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    pristine = tmp_path / "pristine"
    files = {
        "tides.py": GOLD,
        "README.md": "Ebb \u00e9.\n".encode(),
        "docs/terms.rst": b"slack: no flow\n",
        "docs/long.txt": b"x" * (70 << 10),
        "requirements.txt": b"numpy\n",
        "LICENSE.md": b"MIT\n",
        "tests/notes.md": b"no\n",
        "tests/test_a.py": b"",
        "run.sh": b"#!/bin/sh\n",
    }
    for path, content in files.items():
        (pristine / path).parent.mkdir(parents=True, exist_ok=True)
        (pristine / path).write_bytes(content)
    (pristine / "run.sh").chmod(0o755)
    out = tmp_path / "out" / SPEC.task_id
    return write_task(SPEC, out, pristine=pristine, deleted={"tides.py": DELETED}, provenance={"seed": 3, "flaky": 0})


def test_a_task_reads_back_as_it_was_written(task: Task) -> None:
    loaded = load_task(task.root)
    assert loaded == task
    assert loaded.spec == SPEC
    assert loaded.gold_files() == {"tides.py": GOLD}
    assert (loaded.repo / "tides.py").read_bytes() == DELETED
    assert os.access(loaded.repo / "run.sh", os.X_OK)
    assert (loaded.root / "instruction.md").read_text().strip() == SPEC.instruction
    assert [t.spec for t in load_tasks(task.root.parent)] == [SPEC]
    assert sorted(p.name for p in task.root.parent.iterdir()) == [SPEC.task_id]


def test_the_patch_and_the_manifest_work_with_ordinary_tools(task: Task, tmp_path: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "MANIFEST.sha256"], cwd=task.root, check=True)
    work = tmp_path / "work"
    shutil.copytree(task.repo, work)
    subprocess.run(["git", "apply", str(task.root / "solution" / "gold.patch")], cwd=work, check=True)
    assert (work / "tides.py").read_bytes() == GOLD
    assert "+    return a" in task.gold_patch()


def test_the_deleted_code_is_the_bodies_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "tides.py").write_text(TIDES)

    def code(*names: str) -> tuple[str, ...]:
        deleted = tuple(Deletion(path="tides.py", qualname=name, lines=1) for name in names)
        spec = dataclasses.replace(SPEC, deleted=deleted)
        task = write_task(spec, tmp_path / "task", pristine=tmp_path / "tree", deleted={"tides.py": b""})
        return task.deleted_code()

    assert code("Tide.slack") == ("        low = self.low()\n        return low\n",)
    assert code("ebb", "Tide.low") == ("        return 0\n", "    # back\n    return -x\n")
    assert code("ebb", "flow") == code() == (TIDES,), "what is not found again is kept secret with its file"


def test_docs_are_the_documentation_only_and_capped(task: Task) -> None:
    docs = task.docs()
    assert list(docs) == ["README.md", "docs/long.txt", "docs/terms.rst"]
    assert docs["README.md"] == "Ebb \u00e9.\n"
    assert len(docs["docs/long.txt"]) == 64 << 10


@pytest.mark.parametrize("name", ["repo/README.md", "MANIFEST.sha256", "task.toml", "hidden.json"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_pipe_or_a_link_in_the_place_of_a_file_is_refused_unread(task: Task, tmp_path: Path, name: str, kind: str) -> None:
    """A pipe would be waited for without end, and a link read from outside of the task."""
    path, outside = task.root / name, tmp_path / "outside"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(outside)
    with pytest.raises(TaskError, match=f"{name} was changed|it cannot be read .*{name}"):
        load_task(task.root)


def test_a_manifest_of_any_size_is_not_read(task: Task) -> None:
    with (task.root / "MANIFEST.sha256").open("ab") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(TaskError, match="larger than 67108864 bytes"):
        load_task(task.root)


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "repo/tests/test_a.py", "solution/gold.patch"])
def test_a_changed_file_is_named(task: Task, name: str) -> None:
    with (task.root / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(TaskError, match=f"{name} was changed") as caught:
        load_task(task.root)
    assert "delete" in (caught.value.fix or "")


def test_missing_added_and_linked_files_are_named(task: Task) -> None:
    (task.root / "repo" / "README.md").unlink()
    with pytest.raises(TaskError, match=r"repo/README.md is missing"):
        load_task(task.root)
    (task.root / "repo" / "README.md").symlink_to("/etc/hostname")
    with pytest.raises(TaskError, match=r"repo/README.md was changed"):
        load_task(task.root)
    (task.root / "repo" / "README.md").unlink()
    (task.root / "repo" / "README.md").write_bytes("Ebb \u00e9.\n".encode())
    load_task(task.root)
    (task.root / "repo" / "__pycache__").mkdir()
    (task.root / "repo" / "__pycache__" / "tides.pyc").write_bytes(b"")
    with pytest.raises(TaskError, match=r"tides.pyc does not belong to it"):
        load_tasks(task.root.parent)


def test_other_schemas_and_shapes_are_refused(task: Task) -> None:
    toml = task.root / "task.toml"
    text = toml.read_text()

    def rewrite(content: str) -> None:
        toml.write_text(content)
        digest = subprocess.run(["sha256sum", "task.toml"], cwd=task.root, capture_output=True, text=True, check=True).stdout
        manifest = task.root / "MANIFEST.sha256"
        lines = [line for line in manifest.read_text().splitlines() if not line.endswith("  task.toml")]
        manifest.write_text("\n".join([*lines, digest.strip()]) + "\n")

    rewrite(text.replace("schema_version = 5", "schema_version = 99"))
    with pytest.raises(TaskError, match="schema version 99; this release reads 5"):
        load_task(task.root)
    rewrite(text.replace("task_id =", "tusk_id ="))
    with pytest.raises(TaskError, match=r"task.toml is not a task"):
        load_task(task.root)
    for inside, outside, why in (
        ('python_path = [\n    "src"', 'python_path = [\n    "../../../.."', "imports from outside"),
        ('path = "', 'path = "../', "deletes outside"),
        ('fail_to_pass = [\n    "', 'fail_to_pass = [\n    "/', "names a test outside"),
    ):
        assert inside in text, inside
        rewrite(text.replace(inside, outside))
        with pytest.raises(TaskError, match=why):
            load_task(task.root)
    rewrite("no toml")
    with pytest.raises(TaskError, match="cannot be read"):
        load_task(task.root)


def test_absent_and_incomplete_tasks(task: Task, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="does not exist"):
        load_task(tmp_path / "nowhere")
    with pytest.raises(TaskError, match="cannot be read"):
        load_tasks(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match="holds no tasks"):
        load_tasks(tmp_path / "empty")
    with pytest.raises(TaskError, match="is a file, and a task is a folder"):
        load_task(task.root / "task.toml")
    (task.root / "MANIFEST.sha256").unlink()
    with pytest.raises(TaskError, match="no complete task"):
        load_task(task.root)


def test_a_folder_that_is_nearly_the_right_one_is_told(task: Task, tmp_path: Path) -> None:
    folder = task.root.parent
    with pytest.raises(TaskError, match="is one task, not a folder of tasks") as caught:
        load_tasks(task.root)
    assert caught.value.fix == f"name the folder that holds it: {folder}"
    with pytest.raises(TaskError, match="is a folder of tasks, not a task") as caught:
        load_task(folder)
    assert str(task.root) in str(caught.value)
    above = tmp_path / "above"
    shutil.copytree(folder, above / "made")
    with pytest.raises(TaskError, match="holds no tasks") as caught:
        load_tasks(above)
    assert caught.value.fix == f"did you mean {above / 'made'}?"
    (folder / "notes").mkdir()
    with pytest.raises(TaskError, match=r"notes is no task .* and lies among the tasks of") as caught:
        load_tasks(folder)
    assert "move it elsewhere" in (caught.value.fix or "")


def test_writing_again_replaces_the_task(task: Task, tmp_path: Path) -> None:
    (task.root / "repo" / "stray").write_bytes(b"")
    spec = dataclasses.replace(SPEC, instruction="Other.")
    write_task(spec, task.root, pristine=tmp_path / "pristine", deleted={"tides.py": DELETED})
    assert load_task(task.root).spec == spec


KILLED_AT = """
import os, sys
from pathlib import Path
from composer_replication.tasks.store import publish_task

left = int(sys.argv[3])

def kill(event, _arguments):
    global left
    if event in ("os.rename", "shutil.rmtree", "os.remove", "os.rmdir"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)

sys.addaudithook(kill)
publish_task(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("read", [load_task, lambda root: load_tasks(root.parent)[0]], ids=["one", "all"])
def test_killed_between_any_two_steps_a_task_is_the_old_or_the_new(
    task: Task, tmp_path: Path, read: Callable[[Path], Task]
) -> None:
    new = dataclasses.replace(SPEC, instruction="Other.")
    (tmp_path / "one").mkdir()
    kept = write_task(SPEC, tmp_path / "one" / "kept", pristine=tmp_path / "pristine", deleted={"tides.py": DELETED}).root
    found = []
    for steps in (*range(6), 1000):
        out = tmp_path / f"out{steps}"
        shutil.copytree(kept, out / SPEC.task_id)
        staged = write_task(new, out / ".staged" / "new", pristine=tmp_path / "pristine", deleted={"tides.py": DELETED}).root
        command = [sys.executable, "-c", KILLED_AT, str(staged), str(out / SPEC.task_id), str(steps)]
        environment = {**os.environ, "PYTHONPATH": str(Path(sys.modules["composer_replication"].__file__ or "").parents[1])}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == (-signal.SIGKILL if steps < 1000 else 0), done.stderr
        found.append(read(out / SPEC.task_id).spec)
        if staged.exists():
            publish_task(staged, out / SPEC.task_id)
        assert load_task(out / SPEC.task_id).spec == new
        assert [task.spec for task in load_tasks(out)] == [new]
        assert sorted(path.name for path in out.iterdir()) == [".staged", SPEC.task_id]
    assert found[0] == found[1] == SPEC
    assert found[2] == found[-1] == new


def test_an_unwritable_place_is_a_storage_error(task: Task, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot write") as caught:
        write_task(SPEC, tmp_path / "file" / "t", pristine=tmp_path / "pristine", deleted={"tides.py": DELETED})
    assert "run the same command again" in (caught.value.fix or "")


# --- folders of a stranger ------------------------------------------------------------------------------------------

LEADING_AWAY = ("", ".", "..", "../up", "a/../b", "/etc", "a//b", "a/", ".hidden", "a/.b", "a\\b", "a\x1b[2J", "a\n", "x" * 201)


@pytest.mark.parametrize("task_id", LEADING_AWAY)
def test_an_id_that_is_no_name_is_no_task(task_id: str) -> None:
    """Exports and joined tasks are written below it."""
    with pytest.raises(ValueError, match="is not a name for a folder"):
        spec_of(to_json(SPEC) | {"task_id": task_id})


@pytest.mark.parametrize(
    "task_id", ["shop/a", "django__django-123", "ordered-set-orderedset-__len__-6f8b6787", "shop/total+mean"]
)
def test_ids_in_use_are_names(task_id: str) -> None:
    assert is_task_id(task_id)
    assert spec_of(to_json(SPEC) | {"task_id": task_id}).task_id == task_id


@pytest.mark.parametrize("name", ["..old", "...old", ".\\.old"])
def test_reading_a_suite_deletes_nothing_beside_it(tmp_path: Path, name: str) -> None:
    """What a killed build had put aside is brought back; a name that means the suite itself is none of that."""
    suite = tmp_path / "suite"
    (suite / name).mkdir(parents=True)
    precious = tmp_path / ".suite.old" / "precious"
    precious.parent.mkdir()
    precious.write_text("mine")
    with pytest.raises(TaskError, match="holds no tasks"):
        load_tasks(suite)
    assert precious.read_text() == "mine"
