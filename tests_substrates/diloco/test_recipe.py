"""The recipe in replicas: `composer diloco run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest
import tomli_w
from safetensors.torch import load_file
from world import COMPOSER, make_world, run_text

from composer_replication.errors import ConfigError
from composer_replication.observe.files import exclusive

HANG_S = 900
ROUNDS = {"diloco": {"sync_every": 2, "fragments": 2, "codec": "int8", "snapshot_every": 2}}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def run_file(world, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(run_text(world)) | ROUNDS))
    return path


def composer(*words):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*COMPOSER, *map(str, words)], env=env, capture_output=True, text=True, timeout=HANG_S)


def wait_until_free(folder):
    """A replica ends soon after the process that launched it, and its lock with it."""
    until = time.monotonic() + HANG_S
    while True:
        try:
            with exclusive(folder):
                return
        except ConfigError:
            assert time.monotonic() < until
            time.sleep(0.05)


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def practised(folder, step):
    """The task of every rollout."""
    (file,) = folder.glob(f"trajectories/*/step_{step:05d}.jsonl")
    return [json.loads(line)["task_id"] for line in file.read_text().splitlines()]


def final_weights(folder):
    (last,) = sorted(folder.glob("ckpt/*/step_*"))[-1:]
    return last.name, (last / "model.safetensors").read_bytes(), load_file(last / "model.safetensors")


def test_replicas_train_one_policy_and_say_what_their_rounds_cost(run_file):
    words = ("--replicas", "2", "--executor", "local", "--diloco.state_every", "2")
    done = composer("diloco", "run", run_file, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    job = Path(tomllib.loads(run_file.read_text()).get("out", run_file.parent / "runs")) / "run"
    replicas = [job / f"replica_{rank:05d}" for rank in range(2)]
    one, other = map(final_weights, replicas)
    assert one[0] == other[0] == "step_00004"
    assert one[1] == other[1]
    assert final_weights(job)[:2] == one[:2]
    assert f"weights of main: {job / 'ckpt' / 'main' / 'step_00004'}" in done.stdout
    for folder in replicas:
        rounds = [line for line in metrics(folder) if "diloco/round" in line]
        assert [line["diloco/round"] for line in rounds] == [1, 2, 3, 4]
        assert all(line["diloco/members"] == 2 and line["diloco/counted"] for line in rounds)
        assert all(line["diloco/bytes_up"] > 0 and line["diloco/bytes_down"] > 0 for line in rounds)
    states = {path.parent.name for path in job.glob("store/arms/*/replicas/*/*/manifest.json")}
    assert states == {"00000002", "00000004"}
    for step in range(1, 5):
        tried = [practised(folder, step) for folder in replicas]
        assert [len(one) for one in tried] == [3, 3]  # of 2 groups of 3 siblings, one each
        assert not set(tried[0]) & set(tried[1])
    again = composer("diloco", "run", run_file, "--replicas", "2")
    assert again.returncode == 2
    assert "holds a job already" in again.stderr


def test_a_killed_job_is_resumed_as_a_whole_and_ends_where_it_would_have(run_file, tmp_path):
    whole = composer("diloco", "run", run_file, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    words = [*COMPOSER, "diloco", "run", run_file, "--out", str(tmp_path / "cut")]
    process = subprocess.Popen(
        list(map(str, words)), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    saved = tmp_path / "cut" / "run" / "store" / "arms"
    until = time.monotonic() + HANG_S
    try:
        while not list(saved.glob("*/replicas/00000/*/manifest.json")):
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    for rank in range(2):
        wait_until_free(tmp_path / "cut" / "run" / f"replica_{rank:05d}")
    resumed = composer("diloco", "run", run_file, "--out", tmp_path / "cut", "--resume")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    for rank in range(2):
        folders = [tmp_path / name / "run" / f"replica_{rank:05d}" for name in ("whole", "cut")]
        one, other = map(final_weights, folders)
        assert one[:2] == other[:2]


def test_composer_train_sends_a_run_of_replicas_to_the_right_command(run_file):
    done = composer("train", run_file, "--diloco.enabled", "true")
    assert done.returncode == 2
    assert "composer diloco run" in done.stderr
