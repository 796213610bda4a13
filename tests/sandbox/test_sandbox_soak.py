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


def test_what_is_left_is_seen(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("soak", SOAK)
    soak = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = soak
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spec.loader.exec_module(soak)
    before = soak.counts()
    with (tmp_path / "file").open("w"), subprocess.Popen(["sleep", "600"]) as child:
        left = soak.left_over(before, soak.counts())
        child.kill()
    assert left.keys() == {"processes", "temporary files", "descriptors"}
    assert soak.left_over({"memory (MB)": 100}, {"memory (MB)": 133}) == {"memory (MB)": 33}
