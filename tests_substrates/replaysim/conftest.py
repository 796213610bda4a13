"""Other libraries may warn about themselves; and a Ray cluster of one node, for the tests that need an address."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")


def pair(n, chosen, rejected):
    return {
        "state_id": f"s{n}",
        "state_messages": [{"role": "user", "content": f"task {n}"}],
        "chosen": chosen,
        "rejected": rejected,
        "n_teachers_agreeing": 2,
    }


@pytest.fixture(scope="session")
def pairs():
    """Pairs of (chosen, rejected) texts."""
    return lambda texts: [pair(n, chosen, rejected) for n, (chosen, rejected) in enumerate(texts)]


@pytest.fixture(scope="session")
def ray_address():
    """The address of a Ray cluster of one node, in processes of its own."""
    ray = str(Path(sys.executable).with_name("ray"))
    head = [ray, "start", "--head", "--block", "--port", "0", "--num-cpus", "2", "--include-dashboard", "false"]
    folder = tempfile.mkdtemp(prefix="ray-")  # a socket's path must be short
    command = [*head, "--disable-usage-stats", "--temp-dir", folder]
    open_to_all = os.environ | {"RAY_AUTH_MODE": "disabled"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=open_to_all) as cluster:
        told = ""
        for line in cluster.stdout:
            told += line
            if found := re.search(r"--address='([^']+)'", line):
                break
        assert found, told
        yield found[1]
        cluster.terminate()
    shutil.rmtree(folder, ignore_errors=True)
