"""`composer tasks build` under `kill -9`: what was decided stays, what is left is removed, and nobody complains."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from composer_replication.sandbox.backends.cgroup import find_cgroups
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.store import load_task

WriteProject = Callable[[Mapping[str, str]], Path]

FUNCTIONS = ("ebb", "flow", "neap", "slack", "spring")
PROJECT = {
    "tide.py": "\n\n".join(f"def {name}(x):\n    grown = x + {n}\n    return grown\n" for n, name in enumerate(FUNCTIONS)),
    "test_tide.py": "import tide\n\n"
    + "\n\n".join(f"def test_{name}():\n    assert tide.{name}(1) == {n + 1}\n" for n, name in enumerate(FUNCTIONS)),
}


def decided(out: Path) -> list[bytes]:
    """The whole lines of the build's journal."""
    journal = out / ".build" / "verdicts.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


def groups_of(pid: int) -> list[Path]:
    """The control groups of the boxes of a process."""
    groups = find_cgroups()
    folders = {groups.memory, groups.pids, groups.cpu} - {None} if groups else set()
    return [group for folder in folders for group in folder.glob(f"composer-box-{pid}-*")]


@pytest.mark.slow
def test_a_killed_build_loses_nothing_and_leaves_nothing(write_project: WriteProject, tmp_path: Path) -> None:
    """Killed is the command alone: its launchers and boxes have to notice, and to end without a word."""
    out, temporary = tmp_path / "tasks", tmp_path / "temporary"
    temporary.mkdir()
    program = "from composer_replication.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        program,
        "tasks",
        "build",
        str(write_project(PROJECT)),
        "--out",
        str(out),
        "--forgeable",
        "--trivial",
    ]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    before: list[bytes] = []
    for reached in (
        lambda: any(path.name.startswith("composer-") for path in temporary.iterdir()),  # not `tempfile`'s own trial
        lambda: (out / ".build" / "source.json").exists(),
        lambda: len(decided(out)) >= 1,
        lambda: len(decided(out)) >= 3,
    ):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while not reached():
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
        _, said = process.communicate()  # the last process that could say something has ended
        assert "Traceback" not in said
        assert groups_of(process.pid) == []
        now = decided(out)
        assert now[: len(before)] == before
        before = now
        for folder in out.iterdir() if out.exists() else ():
            if not folder.name.startswith("."):
                load_task(folder)
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
    assert decided(out)[: len(before)] == before
    assert {task.spec.deleted[0].qualname for task in load_tasks(out)} == set(FUNCTIONS)
    assert list(temporary.iterdir()) == []
