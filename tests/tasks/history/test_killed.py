"""`composer tasks build --mode commits` under `kill -9`: decided commits stay decided, and the result is the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from git_repositories import BASE, CLAMPED, DISCOUNT, TEST_CLAMPED, Repository, new_repository

from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.report import BuildOptions

pytestmark = pytest.mark.slow


def small_history(root: Path) -> Repository:
    repository = new_repository(root / "shop")
    repository.commit("The shop", BASE)
    repository.commit("Add a discount", DISCOUNT)
    repository.commit("Clamp a discount", {"shop/totals.py": CLAMPED, "tests/test_discount.py": TEST_CLAMPED})
    repository.commit("Touch both", {"shop/totals.py": f"{CLAMPED}\n", "tests/test_discount.py": f"{TEST_CLAMPED}\n"})
    return repository


def decided(out: Path) -> list[bytes]:
    """The whole lines of the build's journal."""
    journal = out / ".build" / "verdicts.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    return [line for line in lines if line.endswith(b"\n")]


def test_a_killed_build_of_commits_loses_nothing(tmp_path: Path) -> None:
    repository, out, temporary = small_history(tmp_path), tmp_path / "tasks", tmp_path / "temporary"
    temporary.mkdir()
    program = "from composer_replication.cli import main; main()"
    words = ["tasks", "build", repository.path.as_uri(), "--mode", "commits", "--out", str(out), "--forgeable", "--jobs", "1"]
    command = [sys.executable, "-c", program, *words]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    before: list[bytes] = []
    for reached in (
        lambda: (out / ".build").exists(),
        lambda: (out / ".build" / "history").exists(),
        lambda: len(decided(out)) >= 1,
        lambda: (out / ".build" / "staged").exists(),
        lambda: len(decided(out)) >= 2,
    ):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while not reached():
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
        _, said = process.communicate()
        assert "Traceback" not in said
        now = decided(out)
        assert now[: len(before)] == before
        before = now
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
    assert decided(out)[: len(before)] == before
    whole = build_tasks(repository.path.as_uri(), tmp_path / "whole", BuildOptions(mode="commits", forgeable=True))
    ours, theirs = load_tasks(out), load_tasks(tmp_path / "whole")
    assert [task.spec.task_id for task in ours] == [task.spec.task_id for task in theirs] == sorted(whole.tasks)
    assert [task.digest() for task in ours] == [task.digest() for task in theirs]
    assert list(temporary.iterdir()) == []
