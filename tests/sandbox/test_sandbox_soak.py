"""Agents that crash, hang and flood leave nothing behind: the short version of `make soak`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[1] / "tools" / "soak.py"


@pytest.mark.slow
def test_nothing_is_left_behind():
    environment = {**os.environ, "PYTHONPATH": str(Path(sys.modules["composer_replication"].__file__).parents[1])}
    done = subprocess.run([sys.executable, str(SOAK), "48"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["left"] == {}
    assert sum(told["outcomes"].values()) == 48
    assert "reward 1" not in told["outcomes"]


@pytest.mark.slow
def test_hostile_cases_raise_nothing_and_leave_nothing():
    """The short version of `make fuzz-grader`."""
    environment = {**os.environ, "PYTHONPATH": str(Path(sys.modules["composer_replication"].__file__).parents[1])}
    command = [sys.executable, str(SOAK.with_name("fuzz_grader.py")), "--count", "120", "--box-every", "10"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["passed"], told["exceptions"], told["left"], told["boxes"]) == (True, 0, {}, 12)


LEAVE = """
import json, subprocess, sys, tempfile
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import soak

soak.set_subreaper()
tempfile.tempdir = sys.argv[2]
before = soak.counts()
with Path(sys.argv[2], "file").open("w"):
    # the shell ends at once, and what it started goes on
    orphan = int(subprocess.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE).stdout)
    left = soak.left_over(before, soak.counts())
    soak.os.kill(orphan, 9)
soak.settled(before)
print(json.dumps([left, soak.left_over(before, soak.counts())]))
"""


@pytest.mark.slow
def test_what_is_left_is_seen(tmp_path):
    """In a process of its own: other tests' children come and go in this one."""
    environment = {**os.environ, "PYTHONPATH": str(Path(sys.modules["composer_replication"].__file__).parents[1])}
    command = [sys.executable, "-c", LEAVE, str(SOAK.parent), str(tmp_path)]
    left, at_the_end = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
    assert left.keys() == {"processes", "temporary files", "descriptors"}
    assert at_the_end == {"temporary files": 1}


def test_memory_may_grow_a_little():
    spec = importlib.util.spec_from_file_location("soak", SOAK)
    soak = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = soak
    spec.loader.exec_module(soak)
    assert soak.left_over({"memory (MB)": 100}, {"memory (MB)": 132}) == {}
    assert soak.left_over({"memory (MB)": 100}, {"memory (MB)": 133}) == {"memory (MB)": 33}
