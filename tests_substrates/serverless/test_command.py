"""`composer diloco run` with the executor of the run file: the recipe itself in rented containers, over one bucket."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest
import tomli_w
from world import COMPOSER, make_world, run_text

ROUNDS = {"sync_every": 1, "codec": "int8", "snapshot_every": 1}
MACHINES = {"modal": {"gpu": "A100"}, "hf": {"hardware": "a10g-large"}}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def run_file(world, tmp_path, rendezvous, store_environment, secret_names):
    """`run_file(kind, **executor)` writes one whose replicas are `kind`'s."""

    def write(kind, **executor):
        machine = {"setup": "", "image": "python:3.11", "env": store_environment, "secrets": list(secret_names), **MACHINES[kind]}
        diloco = {**ROUNDS, "rendezvous": rendezvous, "executor": machine | executor}
        path = tmp_path / "run.toml"
        path.write_text(tomli_w.dumps(tomllib.loads(run_text(world)) | {"steps": 2, "diloco": diloco}))
        return path

    return write


def composer(*words):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*COMPOSER, "diloco", "run", *map(str, words)], env=env, capture_output=True, text=True)


@pytest.fixture
def containers(request):
    """`containers(kind)` are those that were rented from it."""

    def of(kind):
        if kind == "hf":
            return [container for _, container in request.getfixturevalue("hub").jobs.values()]
        return list(request.getfixturevalue("modal_server").sandboxes.values())

    return of


@pytest.fixture(params=["modal", "hf"])
def kind(request) -> str:
    """Its server runs."""
    request.getfixturevalue({"modal": "modal_server", "hf": "hub"}[request.param])
    return request.param


def weights(folder: Path) -> bytes:
    (last,) = sorted(folder.glob("ckpt/*/step_*"))[-1:]
    return (last / "model.safetensors").read_bytes()


def test_the_recipe_runs_in_rented_containers(kind, run_file, containers) -> None:
    before = len(containers(kind))
    path = run_file(kind)
    done = composer(path, "--executor", kind)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "replica 1, main: pass@1" in done.stdout
    rented = containers(kind)[before:]
    assert [container.status for container in rented] == [0, 0]
    assert all(os.environ["AWS_SECRET_ACCESS_KEY"] not in " ".join(container.process.args) for container in rented)
    job = Path(tomllib.loads(path.read_text()).get("out", path.parent / "runs")) / "run"
    assert weights(job) == weights(job / "replica_00000") == weights(job / "replica_00001")


@pytest.fixture
def begun():
    """`begun(path, kind)` is the command in the background, with its replicas rented."""
    processes = []

    def begin(path, kind):
        words = [*COMPOSER, "diloco", "run", str(path), "--executor", kind]
        process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        while not (path.parent / "runs" / "run" / "replicas.json").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        return process

    yield begin
    for process in processes:
        with process:
            process.kill()


def test_replicas_of_a_command_that_was_killed_are_ended_before_others_are_rented(kind, run_file, containers, begun) -> None:
    before = len(containers(kind))
    path = run_file(kind, timeout_s=3600.0)
    process = begun(path, kind)
    process.kill()
    process.wait()
    orphans = containers(kind)[before:]
    assert [container.status for container in orphans] == [None, None]
    refused = composer(path, "--executor", kind)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "--resume" in refused.stderr
    assert [container.status for container in orphans] == [None, None]
    done = composer(path, "--executor", kind, "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(container.terminated for container in orphans)
    assert [container.status for container in containers(kind)[before + 2 :]] == [0, 0]
    assert not (path.parent / "runs" / "run" / "replicas.json").exists()


def test_a_command_that_is_told_to_end_gives_back_what_it_rented(kind, run_file, containers, begun) -> None:
    before = len(containers(kind))
    process = begun(run_file(kind), kind)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate()
    assert process.returncode == 143, said
    assert [container.status is None for container in containers(kind)[before:]] == [False, False]


def test_a_machine_that_dies_is_replaced(kind, run_file, containers, begun) -> None:
    before = len(containers(kind))
    path = run_file(kind)
    process = begun(path, kind)
    containers(kind)[before + 1].kill()
    _, said = process.communicate()
    assert process.returncode == 0, said
    rented = containers(kind)[before:]
    assert [container.status for container in rented if container is not rented[1]] == [0, 0]
    job = path.parent / "runs" / "run"
    assert weights(job) == weights(job / "replica_00000") == weights(job / "replica_00001")


def test_a_replica_that_fails_elsewhere_fails_the_command(kind, run_file, containers) -> None:
    done = composer(run_file(kind, type=kind, setup="echo no such package >&2; exit 9"))
    assert done.returncode == 11, done.stdout + done.stderr
    assert "2 of 2 replicas failed" in done.stderr or "1 of 2 replicas failed" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_executor_cannot_do_is_told_before_anything_is_rented(kind, run_file, containers) -> None:
    before = len(containers(kind))
    for executor, said in (({"secrets": ["NO_SUCH_KEY"]}, "NO_SUCH_KEY"), ({"image": "modal:python3.11"}, "modal:python3.11")):
        done = composer(run_file(kind, type=kind, **executor))
        assert done.returncode == 2, done.stdout + done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert len(containers(kind)) == before
