"""A mesh on a Ray cluster that was there before it and is there after it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import tomli_w
from living import children, gone_all
from world import run_text

from composer_replication.observe import RunDir
from composer_replication.types.errors import ConfigError

if find_spec("ray") is None:
    pytest.skip("Ray is not installed here", allow_module_level=True)

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def environment():
    """Of a driver on a cluster that ends with the tests. Drivers are processes: Ray can be in one mode of authentication only."""
    folder = tempfile.mkdtemp(prefix="ray-")  # short: a socket's path has 107 characters
    before = children()
    options = "--head --block --port=0 --num-cpus=1 --num-gpus=0 --include-dashboard=false --disable-usage-stats"
    command = [str(Path(sys.executable).parent / "ray"), "start", *options.split(), "--dashboard-agent-listen-port=0"]
    command += ["--object-store-memory=134217728", f"--temp-dir={folder}"]
    own = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"RAY_AUTH_MODE": "disabled"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=own) as head:
        try:
            said = []
            for line in head.stdout:
                said.append(line)
                if found := re.search(r"--address='([^']+)'", line):
                    break
            else:
                raise AssertionError("".join(said))
            yield own | {"RAY_ADDRESS": found[1]}
        finally:
            ours = children() - before
            for pid in ours:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            assert gone_all(ours)
            shutil.rmtree(folder, ignore_errors=True)


def run(*words, environment, cwd=HERE):
    done = subprocess.run([sys.executable, *words], env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_mesh_joins_a_cluster_and_leaves_it_as_it_was(environment):
    for _ in range(2):  # the cluster goes on
        said = run("cluster_driver.py", environment=environment)  # Ray writes there too
        (pid,) = map(int, re.findall(r"^actor (\d+)$", said, flags=re.M))
        assert gone_all([pid])  # the actors have ended with their mesh


def test_a_run_on_a_cluster(world, tmp_path, environment):
    data = tomllib.loads(run_text(world)) | {"steps": 2, "substrate": {"type": "ray", "max_staleness": 1}}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(data))
    train = "from composer_replication.cli import main; main()"
    run("-c", train, "train", "run.toml", environment=environment, cwd=tmp_path)
    assert max(line.step for line in RunDir(tmp_path / "runs" / "run").read_metrics()) == 2


def test_a_cluster_that_cannot_be_joined_is_said(environment, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:10001")
    from composer_replication.recipes.ray.mesh import RayMesh

    with pytest.raises(ConfigError, match=r"RAY_ADDRESS = ray://127\.0\.0\.1:10001 is a Ray client server"):
        RayMesh()
    words = ["-c", "from composer_replication.recipes.ray.mesh import RayMesh; RayMesh()"]
    nowhere = environment | {"RAY_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run([sys.executable, *words], env=nowhere, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "BackendError: the Ray cluster at 127.0.0.1:1 cannot be joined" in done.stderr
