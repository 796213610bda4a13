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


@pytest.fixture(scope="module")
def whole(world, tmp_path_factory):
    """The folder of a job that nothing disturbed."""
    path = tmp_path_factory.mktemp("whole") / "run.toml"
    path.write_text(tomli_w.dumps(tomllib.loads(run_text(world)) | ROUNDS))
    done = composer("diloco", "run", path, "--out", path.parent / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    return path.parent / "runs" / "run"


class Job:
    """`composer diloco run` in the background, as from a terminal or, with `hangup="ignore"`, by nohup."""

    def __init__(self, run_file, out, hangup="default"):
        self.folder, self._output = out / "run", out.with_suffix(".log")
        words = ["env", f"--{hangup}-signal=HUP", *COMPOSER, "diloco", "run", run_file, "--out", out]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self._output.open("wb") as file:
            self.process = subprocess.Popen(list(map(str, words)), env=env, start_new_session=True, stdout=file, stderr=file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def output(self):
        return self._output.read_text()

    def wait_for_a_state(self, rank):
        """Until this replica has something to go on from."""
        until = time.monotonic() + HANG_S
        while not list(self.folder.glob(f"store/arms/*/replicas/{rank:05d}/*/manifest.json")):
            assert time.monotonic() < until
            assert self.process.poll() is None, self.output()
            time.sleep(0.02)

    def pids(self, rank):
        """Of the processes that stood for this replica, by when they started."""
        said = [json.loads(path.read_text()) for path in self.folder.glob(f"store/replicas/*/{rank:05d}/started.json")]
        return [one["pid"] for one in sorted(said, key=lambda one: one["time"])]


def ends_as(whole, folder):
    return all(
        final_weights(whole / f"replica_{rank:05d}")[:2] == final_weights(folder / f"replica_{rank:05d}")[:2] for rank in range(2)
    )


def test_a_killed_job_is_resumed_as_a_whole_and_ends_where_it_would_have(run_file, tmp_path, whole):
    with Job(run_file, tmp_path / "cut") as job:
        job.wait_for_a_state(0)
    resumed = composer("diloco", "run", run_file, "--out", tmp_path / "cut", "--resume")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert ends_as(whole, job.folder)


def test_a_killed_replica_is_launched_again_and_the_job_ends_where_it_would_have(run_file, tmp_path, whole):
    with Job(run_file, tmp_path / "cut") as job:
        job.wait_for_a_state(1)
        (killed,) = job.pids(1)
        os.kill(killed, signal.SIGKILL)
        assert job.process.wait(HANG_S) == 0, job.output()
    assert "replica 1 was lost (it ended with status -9) and is started again (restart 1 of 2)" in job.output()
    assert len(job.pids(1)) == 2
    assert len(job.pids(0)) == 1
    assert ends_as(whole, job.folder)
    assert final_weights(whole)[:2] == final_weights(job.folder)[:2]
    assert not (job.folder / "replicas.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_command_that_is_told_to_end_ends_its_replicas_first(run_file, tmp_path, number, code):
    with Job(run_file, tmp_path / "cut") as job:
        job.wait_for_a_state(0)
        assert len(json.loads((job.folder / "replicas.json").read_text())) == 2
        job.process.send_signal(number)
        assert job.process.wait(HANG_S) == code, job.output()
        assert not any(Path(f"/proc/{pid}").exists() for rank in range(2) for pid in job.pids(rank))
    assert "interrupted; what was done is kept" in job.output()
    assert "Traceback" not in job.output()
    assert not (job.folder / "replicas.json").exists()
    outcomes = [json.loads(path.read_text()) for path in job.folder.glob("store/replicas/*/*/outcome.json")]
    assert [outcome["error"] for outcome in outcomes] == ["cancelled"] * 2


def test_a_command_that_nohup_started_outlives_its_terminal(run_file, tmp_path):
    with Job(run_file, tmp_path / "kept", hangup="ignore") as job:
        job.wait_for_a_state(0)
        job.process.send_signal(signal.SIGHUP)
        assert job.process.wait(HANG_S) == 0, job.output()
    assert final_weights(job.folder)[0] == "step_00004"


def test_composer_train_sends_a_run_of_replicas_to_the_right_command(run_file):
    done = composer("train", run_file, "--diloco.enabled", "true")
    assert done.returncode == 2
    assert "composer diloco run" in done.stderr
