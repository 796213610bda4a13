"""Scratch folders: abandoned ones go, held ones stay, whoever was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from composer_replication.sandbox.attempt import processes_with
from composer_replication.sandbox.scratch import hold, make_scratch, remove_abandoned, scratch_folder

ROOT = str(Path(sys.modules["composer_replication"].__file__).parents[1])


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """An empty folder for temporary files of this process and those it starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def host(code: str, *arguments: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": ROOT}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )


def test_a_folder_lives_as_long_as_somebody_holds_it(temporary):
    path, held = make_scratch()
    second = hold(path)
    Path(path, "file").write_text("x")
    with scratch_folder() as other:
        assert sorted(os.listdir(temporary)) == sorted([Path(path).name, other.name])
    assert os.listdir(temporary) == [Path(path).name]
    os.close(held)
    remove_abandoned(path)
    assert Path(path, "file").exists()
    os.close(second)
    with scratch_folder() as other:
        assert os.listdir(temporary) == [other.name]
    with pytest.raises(FileNotFoundError):
        hold(path)


def test_folders_of_others_are_left_alone(temporary, tmp_path):
    if os.geteuid() == 0:
        foreign = temporary / "composer-scratch-foreign"
        foreign.mkdir()
        os.chown(foreign, 12345, 12345)
    outside = tmp_path / "outside"
    outside.mkdir()
    (temporary / "composer-scratch-link").symlink_to(outside)
    before = sorted(os.listdir(temporary))
    with scratch_folder():
        pass
    assert sorted(os.listdir(temporary)) == before
    assert outside.exists()


def test_a_folder_swept_before_it_is_held_is_made_again(temporary, monkeypatch):
    made = []
    real = tempfile.mkdtemp

    def swept_once(**options):
        made.append(real(**options))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept_once)
    with scratch_folder() as folder:
        assert str(folder) == made[1]


def test_whoever_is_killed_everything_is_removed_at_the_next_start(any_box, base, temporary):
    """Host and launcher are killed at once in the middle of a box, and the next process cleans up after them."""
    marker = f"composer-killed-{os.getpid()}-{any_box.isolation.name}"
    code = """
        import sys
        from pathlib import Path
        from composer_replication.sandbox import Command, Limits, Tree, open_sandbox
        kind, base, marker = sys.argv[1:]
        box = open_sandbox(kind)
        python = Path(sys.executable)
        argv = (sys.executable, "-S", "-c", "import time; time.sleep(600)", marker)
        launcher = box._running_launcher("")
        print(launcher._process.pid, flush=True)
        box.run(Tree(base=Path(base)), Command(argv=argv, python=python, limits=Limits(wall_s=600)))
    """
    process = host(code, any_box.isolation.name, str(base), marker)
    launcher = int(process.stdout.readline())
    while not [pid for pid in processes_with(marker) if pid != process.pid]:
        assert process.poll() is None
    for pid in (launcher, process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    while processes_with(marker):
        pass
    assert os.listdir(temporary)
    while os.listdir(temporary):  # the box may be ending still
        with scratch_folder():
            pass


@pytest.mark.slow
def test_a_killed_launchers_folder_is_removed(any_box, base, answer):
    answer(any_box, base, "import os; os.write(3, b'1')")
    launcher = any_box._launchers[""]
    scratch = Path(launcher.scratch)
    launcher._process.kill()
    launcher._process.wait()
    del launcher
    assert answer(any_box, base, "import os; os.write(3, b'2')") == 2
    while scratch.exists():  # the boxes that waited in it may be ending still
        with scratch_folder():
            pass
