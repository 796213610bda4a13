"""Which files of a workspace are graded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from composer_replication.sandbox import beneath
from composer_replication.sandbox.grading import submission
from composer_replication.sandbox.grading.submission import is_editable, read_submission
from composer_replication.types import TaskSpec

F = "tests/test_calc.py"


def task(*editable: str, python_path: tuple[str, ...] = ("src",)) -> TaskSpec:
    return TaskSpec(
        task_id="t",
        source="s",
        source_digest="d",
        instruction="i",
        deleted=(),
        fail_to_pass=(f"{F}::test_add",),
        pass_to_pass=(),
        editable=editable,
        python_path=python_path,
    )


TASK = task("src/**/*.py")


@pytest.fixture
def pristine(tmp_path) -> Path:
    root = tmp_path / "pristine"
    for path, text in {"src/calc.py": "old", "src/sub/mod.py": "old", F: "tests", "big.bin": "b" * (5 << 20)}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "link").symlink_to("src")
    return root


@pytest.fixture
def workspace(pristine, tmp_path) -> Path:
    shutil.copytree(pristine, tmp_path / "ws", symlinks=True)
    return tmp_path / "ws"


def read(pristine, workspace, spec=TASK, **options):
    found = read_submission(spec, pristine, workspace, **options)
    return found.changes, found.rejected


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("src/calc.py", "src/calc.py", True),
        ("src/*.py", "src/calc.py", True),
        ("src/*.py", "src/sub/mod.py", False),
        ("src/**/*.py", "src/calc.py", True),
        ("src/**/*.py", "src/a/b/c.py", True),
        ("src/**", "src/a/data.txt", True),
        ("**/*.py", "calc.py", True),
        ("s?c/[a-c]*.py", "src/calc.py", True),
        ("s?c/[!a-c]*.py", "src/calc.py", False),
        ("src/calc.py", "src/calcXpy", False),
        ("src/*.py", "src/calc.pyc", False),
        ("**/*.py", F, False),
        ("**/*.py", "conftest.py", False),
        ("**/*.py", "src/conftest.py", False),
        ("**", "pytest.ini", False),
        ("**", "src/sitecustomize.py", False),
        ("**", "src/evil.pth", False),
    ],
)
def test_the_allow_list(pattern, path, expected):
    assert is_editable(task(pattern), path) is expected


def test_an_untouched_workspace_changes_nothing(pristine, workspace):
    assert read(pristine, workspace) == ({}, ())
    assert read(pristine, {"src/calc.py": b"old"}) == ({}, ())


def test_changed_new_and_deleted_files(pristine, workspace):
    (workspace / "src/calc.py").write_text("new")
    (workspace / "src/fresh.py").write_text("fresh")
    (workspace / "src/sub/mod.py").unlink()
    (workspace / F).unlink()
    (workspace / "notes").write_text("x")
    (workspace / "src/__pycache__").mkdir()
    (workspace / "src/__pycache__/calc.pyc").write_bytes(b"x")
    assert read(pristine, workspace) == (
        {"src/calc.py": b"new", "src/fresh.py": b"fresh", "src/sub/mod.py": None},
        ("notes", F),
    )


def test_links_and_special_files_are_not_taken(pristine, workspace, tmp_path):
    (tmp_path / "outside.py").write_text("secret")
    (workspace / "src/calc.py").unlink()
    (workspace / "src/calc.py").symlink_to(tmp_path / "outside.py")
    os.link(tmp_path / "outside.py", workspace / "src/hard.py")
    os.mkfifo(workspace / "src/pipe.py")
    (workspace / "link").unlink()
    (workspace / "link").symlink_to("tests")
    assert read(pristine, workspace) == ({}, ("link", "src/calc.py", "src/hard.py", "src/pipe.py"))


def test_a_changed_file_with_a_second_name_is_not_taken(pristine, workspace):
    """Also within the workspace: names can be moved while they are counted. What nobody changed may have any number."""
    (workspace / "src/a.py").write_text("twin")
    os.link(workspace / "src/a.py", workspace / "src/b.py")
    os.link(workspace / "src/calc.py", workspace.parent / "elsewhere")
    assert read(pristine, workspace) == ({}, ("src/a.py", "src/b.py"))


def test_a_workspace_that_is_a_link_is_refused(pristine, workspace, tmp_path):
    (tmp_path / "to").symlink_to(workspace)
    with pytest.raises(OSError, match="to"):
        read(pristine, tmp_path / "to")


def test_of_a_workspace_with_too_many_files_nothing_is_taken(pristine, workspace, monkeypatch):
    (workspace / "src/calc.py").write_text("new")
    (workspace / "many").mkdir()
    for number in range(40):
        (workspace / "many" / str(number)).touch()
    monkeypatch.setattr(submission, "_MOST_ENTRIES", 40)
    assert read(pristine, workspace) == ({}, ("everything: it holds more than 40 files and folders",))


def test_a_folder_replaced_by_a_link_deletes_nothing(pristine, workspace, tmp_path):
    shutil.copytree(workspace / "src", tmp_path / "elsewhere")
    (tmp_path / "elsewhere/calc.py").write_text("evil")
    shutil.rmtree(workspace / "src")
    (workspace / "src").symlink_to(tmp_path / "elsewhere")
    assert read(pristine, workspace) == ({}, ("src",))


def test_changes_through_links_or_out_of_the_tree_are_not_taken(pristine):
    changes = {"link/calc.py": b"x", "../up.py": b"x", "/etc/x.py": b"x", "src/../src/calc.py": b"x", "src/new.py": b"y"}
    everything = task("**")
    assert read(pristine, changes, everything) == (
        {"src/new.py": b"y"},
        ("../up.py", "/etc/x.py", "link/calc.py", "src/../src/calc.py"),
    )


def test_huge_files_are_not_taken(pristine, workspace):
    (workspace / "src/huge.py").write_bytes(b"#" * (5 << 20))
    assert read(pristine, workspace) == ({}, ("src/huge.py",))


@pytest.mark.parametrize("name", ["a" * 300 + ".py", "\ud800.py", "a\0.py", "a/" * 600 + "b.py", "../../up.py"])
def test_names_that_no_box_can_hold_are_not_taken(pristine, name):
    changes = {f"src/{name}": b"x", "src/calc.py": b"new"}
    assert read(pristine, changes) == ({"src/calc.py": b"new"}, (f"src/{name}",))
    assert not is_editable(TASK, f"src/{name}")


def test_more_than_a_box_can_hold_is_not_taken(pristine):
    """Otherwise the box would break, and who knows the work to be wrong would have no verdict instead of a bad one."""
    large = {f"src/{n:02}.py": b"#" * (4 << 20) for n in range(20)}
    changes, rejected = read(pristine, large)
    assert (len(changes), len(rejected)) == (16, 4)
    changes, rejected = read(pristine, {f"src/{n:04}.py": b"" for n in range(1100)})
    assert (len(changes), len(rejected)) == (1000, 100)
    assert read(pristine, {"src/huge.py": b"#" * (5 << 20)}) == ({}, ("src/huge.py",))


def test_folders_nested_too_deep_to_be_read_are_no_way_out(pristine, workspace):
    (workspace / "src/calc.py").write_text("new")
    nest = "import os\nfor _ in range(30):\n    os.mkdir('x' * 200)\n    os.chdir('x' * 200)\n"
    subprocess.run([sys.executable, "-S", "-c", nest], cwd=workspace, check=True)
    try:
        assert read(pristine, workspace) == ({"src/calc.py": b"new"}, ())
    finally:
        subprocess.run(["rm", "-rf", str(workspace)], check=True)


def test_new_modules_must_not_shadow_installed_ones(pristine, workspace):
    reserved = frozenset({"json", "hypothesis", "calc"})
    (workspace / "src/json.py").write_text("evil")
    (workspace / "src/hypothesis").mkdir()
    (workspace / "src/hypothesis/__init__.py").write_text("evil")
    (workspace / "src/sub/json.py").write_text("fine")
    (workspace / "src/calc.py").write_text("new")
    assert read(pristine, workspace, reserved=reserved) == (
        {"src/calc.py": b"new", "src/sub/json.py": b"fine"},
        ("src/hypothesis/__init__.py", "src/json.py"),
    )


def test_an_unreadable_workspace_is_an_oserror(pristine, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        read(pristine, tmp_path / "nowhere")


def test_equal_size_and_time_are_not_equal_content(pristine, workspace):
    """Also where the very paths were compared before."""
    assert read(pristine, workspace) == ({}, ())
    times = (workspace / "src/calc.py").stat()
    (workspace / "src/calc.py").write_text("new")
    os.utime(workspace / "src/calc.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert read(pristine, workspace) == ({"src/calc.py": b"new"}, ())
    (workspace / "big.bin").write_text("b" * ((5 << 20) - 1) + "c")
    assert "big.bin" in read(pristine, workspace)[1]


@pytest.mark.parametrize("back", [False, True], ids=["gone", "and back again"])
def test_a_hard_link_that_goes_while_it_is_read_is_not_taken(pristine, workspace, tmp_path, monkeypatch, back):
    """Once its name in the workspace is gone, a file outside of it has one name again, like any of the workspace's."""
    outside, inside, honest = tmp_path / "gold.py", workspace / "src/calc.py", tmp_path / "honest"
    outside.write_text("gold")
    honest.write_text("honest")
    inside.unlink()
    inside.hardlink_to(outside)
    fstat = os.fstat

    def exchanging(descriptor):
        if os.path.samestat(fstat(descriptor), os.stat(outside)) and honest.exists():
            honest.replace(inside)
            info = fstat(descriptor)
            if back:
                inside.unlink()
                inside.hardlink_to(outside)
            return info
        return fstat(descriptor)

    monkeypatch.setattr(beneath.os, "fstat", exchanging)
    assert read(pristine, workspace) == ({}, ("src/calc.py",))
    assert not honest.exists(), "the file was exchanged"
