"""What comes back of a command's changes: the same in every kind of box, and nothing but regular files of the tree."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from composer_replication.sandbox import Command, Ending, Limits, Tree

PYTHON = Path(sys.executable)


def run(sandbox, base, code, *, changes=None, **limits):
    argv = (str(PYTHON), "-S", "-B", "-c", textwrap.dedent(code))
    command = Command(argv=argv, python=PYTHON, read_back=True, limits=Limits(**{"wall_s": 60.0, "disk_mb": 64, **limits}))
    result = sandbox.run(Tree(base=base, changes=changes or {}), command)
    assert result.ending is not Ending.EXITED or result.returncode == 0, result.stderr.decode()
    return result


@pytest.fixture
def base(tmp_path) -> Path:
    folder = tmp_path / "base"
    (folder / "pkg" / "deep").mkdir(parents=True)
    for path in ("pkg/one.py", "pkg/two.py", "pkg/deep/three.py", "keep.txt", "big.bin"):
        (folder / path).write_text(path)
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("keep.txt")
    return folder


def test_nothing_changed(any_box, base):
    result = run(any_box, base, "open('keep.txt').read()")
    assert (result.changes, result.not_kept) == ({}, ())


def test_it_has_to_be_asked_for(any_box, base, execute):
    assert execute(any_box, base, "open('new', 'w').close()").changes is None


def test_edits_additions_and_deletions(any_box, base):
    code = """
        import os, shutil
        open("pkg/one.py", "w").write("edited")
        os.makedirs("made/empty"); os.makedirs("made/full"); open("made/full/file", "wb").write(b"\\xff\\0")
        os.remove("keep.txt")
        shutil.rmtree("pkg/deep")
        os.chmod("pkg/two.py", 0o600); os.utime("run.sh")
        open("big.bin", "w").write("big.bin")
        os.rename("run.sh", "moved.sh")
    """
    changes = run(any_box, base, code).changes
    assert changes == {
        "pkg/one.py": b"edited",
        "made/full/file": b"\xff\0",
        "keep.txt": None,
        "pkg/deep/three.py": None,
        "run.sh": None,
        "moved.sh": b"#!/bin/sh\necho ran\n",
    }


def test_a_folder_made_anew_hides_what_it_held(any_box, base):
    code = """
        import os, shutil
        shutil.rmtree("pkg"); os.mkdir("pkg"); open("pkg/two.py", "w").write("pkg/two.py"); open("pkg/new.py", "w").close()
    """
    assert run(any_box, base, code).changes == {"pkg/one.py": None, "pkg/deep/three.py": None, "pkg/new.py": b""}


def test_files_and_folders_that_change_places(any_box, base):
    code = """
        import os, shutil
        shutil.rmtree("pkg"); open("pkg", "w").write("a file now")
        os.remove("keep.txt"); os.mkdir("keep.txt"); open("keep.txt/inside", "w").write("x")
    """
    changes = run(any_box, base, code).changes
    gone = {"pkg/one.py": None, "pkg/two.py": None, "pkg/deep/three.py": None}
    assert changes == {**gone, "pkg": b"a file now", "keep.txt": None, "keep.txt/inside": b"x"}
    look = """
        import json, os
        found = sorted(os.path.join(d, f)[2:] for d, _, fs in os.walk(".") for f in fs)
        assert found == ["big.bin", "keep.txt/inside", "pkg", "run.sh"], found  # the link leads to a folder
    """
    assert run(any_box, base, look, changes=changes).changes == changes


def test_changes_go_on_from_command_to_command(any_box, base):
    first = run(any_box, base, "open('count', 'w').write('1'); open('keep.txt', 'w').write('mine')").changes
    second = run(any_box, base, "open('count', 'a').write('2')", changes=first).changes
    assert second == {"count": b"12", "keep.txt": b"mine"}
    third = run(any_box, base, "import os; os.remove('count'); open('keep.txt', 'w').write('keep.txt')", changes=second)
    assert third.changes == {}
    assert first == {"count": b"1", "keep.txt": b"mine"}


def test_an_edited_program_stays_executable(any_box, base):
    changes = run(any_box, base, "open('run.sh', 'a').write('echo again\\n')").changes
    code = "import subprocess; assert subprocess.check_output(['./run.sh']) == b'ran\\nagain\\n'"
    assert run(any_box, base, code, changes=changes).changes == changes


def test_links_pipes_and_sockets_are_refused(any_box, base, tmp_path):
    (tmp_path / "secret").write_text("host")
    code = f"""
        import os
        os.symlink({str(tmp_path / "secret")!r}, "out"); os.symlink("keep.txt", "inside"); os.mkfifo("pipe")
        open("twice", "w").write("x"); os.link("twice", "again")
        os.remove("pkg/one.py"); os.symlink("/etc/passwd", "pkg/one.py")
        os.makedirs("linked"); os.symlink({str(tmp_path)!r}, "linked/folder")
        open("good", "w").write("good")
    """
    result = run(any_box, base, code)
    assert result.changes == {"good": b"good", "pkg/one.py": None}
    assert sorted(result.not_kept) == [
        "'again' (a hard link)",
        "'inside' (a link)",
        "'linked/folder' (a link)",
        "'out' (a link)",
        "'pipe' (a pipe)",
        "'pkg/one.py' (a link)",
        "'twice' (a hard link)",
    ]


def test_what_tools_leave_behind_does_not_come_back(any_box, base):
    code = """
        import os
        for folder in (".git", "pkg/__pycache__", ".pytest_cache"):
            os.mkdir(folder); open(folder + "/file", "w").close()
    """
    assert run(any_box, base, code).changes == {}


@pytest.mark.parametrize(
    ("code", "limits", "reason"),
    [
        ("for n in range(11): open(f'f{n}', 'w').close()", {"changed_files": 10}, "more than 10 changed files"),
        ("open('f', 'wb').write(bytes(2 << 20))", {"changed_mb": 1}, "more than 1 MB in changed files"),
        ("import os; os.truncate(os.open('f', os.O_CREAT | os.O_RDWR), 1 << 40)", {}, "more than 16 MB in changed files"),
        ("import os\nfor n in range(11): os.symlink('x', f'l{n}')", {"changed_files": 10}, "more than 10 links and devices"),
        ("import os\nfor _ in range(80): os.mkdir('d'); os.chdir('d')", {}, "folders nested deeper than 64"),
    ],
)
def test_too_much_changes_nothing(any_box, base, code, limits, reason):
    before = {"keep.txt": b"as it was"}
    if "truncate" in code and any_box.isolation.name in ("landlock", "unsafe-subprocess"):
        code = code.replace("1 << 40", "1 << 25")  # files have a limit of their own size there
    result = run(any_box, base, code, changes=before, **limits)
    assert result.changes == before
    assert result.not_kept == (reason,)


def test_changes_come_back_from_a_command_that_was_stopped(any_box, base):
    code = "import time; open('written', 'w').write('before the end'); time.sleep(600)"
    result = run(any_box, base, code, wall_s=1.0)
    assert result.ending is Ending.TIMEOUT
    assert result.changes == {"written": b"before the end"}


def test_names_take_no_more_room_than_contents(any_box, base):
    """Names of refused files are shortened, those of the others count as bytes."""
    code = """
        import os
        folder = os.open(".", os.O_RDONLY)
        for _ in range(8):
            os.mkdir(b"\\x80" * 250, dir_fd=folder)
            folder = os.open(b"\\x80" * 250, os.O_RDONLY, dir_fd=folder)
        for number in range(300):
            os.symlink("x", b"%03d" % number + b"\\x80" * 240, dir_fd=folder)
        folder = os.open(".", os.O_RDONLY)
        for _ in range(8):
            os.mkdir("x" * 250, dir_fd=folder)
            folder = os.open("x" * 250, os.O_RDONLY, dir_fd=folder)
        for number in range({plain}):
            os.close(os.open(f"{{number:03}}" + "x" * 240, os.O_CREAT, dir_fd=folder))
    """
    result = run(any_box, base, code.format(plain=0))
    assert len(result.not_kept) == 300
    assert max(map(len, result.not_kept)) < 1300
    assert "more than 1 MB in changed files" in run(any_box, base, code.format(plain=600), changed_mb=1).not_kept


def test_what_cannot_be_read_is_refused(any_box, base):
    code = "import os; os.close(os.open('closed', os.O_CREAT | os.O_WRONLY, 0)); open('open', 'w').close()"
    result = run(any_box, base, code)
    assert result.changes in ({"open": b""}, {"open": b"", "closed": b""})
    assert result.not_kept == (() if "closed" in result.changes else ("'closed' (not readable)",))


def test_a_base_owned_by_somebody_else(box, base):
    if os.geteuid() == 0:
        for path in (base, *base.rglob("*")):
            os.chown(path, 12345, 12345, follow_symlinks=False)
    code = "import os; open('keep.txt', 'w').write('mine'); os.remove('pkg/one.py'); open('new', 'w').close()"
    assert run(box, base, code).changes == {"keep.txt": b"mine", "pkg/one.py": None, "new": b""}
