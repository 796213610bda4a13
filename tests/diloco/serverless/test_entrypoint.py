"""The command that every backend runs, as it is documented."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from composer_replication.diloco.serverless.protocol import ReplicaStatus
from composer_replication.diloco.serverless.records import Records

HERE = Path(__file__).parent
MODULE = "composer_replication.diloco.serverless.replica_entrypoint"


def command(store: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", MODULE, "--rendezvous", str(store), "--world-size", "2", "--job", "test", *more]


def run(store: Path, *more: str, rank: str | None = "1") -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "REPLICA_RANK"}
    environment |= {} if rank is None else {"REPLICA_RANK": rank}
    return subprocess.run(command(store, *more), env=environment, cwd=HERE, capture_output=True, text=True, check=False)


TRAINER = ("--trainer-module", "replicas", "--trainer-fn")


def test_output_goes_to_both_and_the_result_to_the_store(tmp_path) -> None:
    ran = run(tmp_path, *TRAINER, "report", "--trainer-kwargs-json", '{"x": 1}')
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "replica 1 of 2\n", "")
    records = Records.of({"rendezvous_uri": str(tmp_path), "job": "test"}, 1)
    assert records.log() == "replica 1 of 2\n"
    started = json.loads((tmp_path / "replicas/test/00001/started.json").read_text())
    assert started["function"] == "replicas:report"
    outcome = records.outcome()
    assert (outcome.status, outcome.value["x"], outcome.value["rank"]) == (ReplicaStatus.SUCCEEDED, 1, 1)


def test_what_a_trainer_writes_is_shown_and_not_obeyed(tmp_path) -> None:
    ran = run(tmp_path, *TRAINER, "rename_the_window")
    assert ran.stdout.startswith("\\x1b]0;owned\\x07 é\n")
    assert ran.stdout.count(r"\x1b]0;owned\x07") == 4, "twice in its output, in the line that failed, and in the error"
    assert not set("\x1b\x07") & set(ran.stdout + ran.stderr)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ((*TRAINER, "fail", "--trainer-kwargs-json", '{"rank": 1}'), 1),
        ((*TRAINER, "refuse"), 2),
        ((*TRAINER, "leave", "--trainer-kwargs-json", '{"status": 7}'), 7),
        ((*TRAINER, "leave", "--trainer-kwargs-json", '{"status": 0}'), 1),
        ((*TRAINER, "die"), 137),
        ((*TRAINER, "wait", "--timeout-s", "0.3"), 124),
    ],
)
def test_the_exit_status_says_how_it_ended(tmp_path, more, status) -> None:
    assert run(tmp_path, *more).returncode == status


@pytest.mark.parametrize(
    ("rank", "more", "told"),
    [
        (None, (), "the environment variable REPLICA_RANK is '', with 2 replicas"),
        ("2", (), "the environment variable REPLICA_RANK is '2', with 2 replicas"),
        ("-1", (), "the environment variable REPLICA_RANK is '-1'"),
        ("0", ("--rank-env", "OTHER"), "the environment variable OTHER is ''"),
        ("0", ("--trainer-kwargs-json", "{"), "--trainer-kwargs-json: no JSON"),
        ("0", ("--trainer-kwargs-json", "[]"), "--trainer-kwargs-json: no JSON object"),
        ("0", ("--world-size", "0"), "--world-size: no whole number of at least 1"),
        ("0", ("--rendezvous", "ftp://x"), "'ftp://x' is not an address of an object store"),
    ],
)
def test_wrong_arguments_are_told_in_a_line(tmp_path, rank, more, told) -> None:
    ran = run(tmp_path, *more, rank=rank)
    assert ran.returncode == 2
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_sigterm_ends_the_trainer_and_is_told(tmp_path) -> None:
    environment = {**os.environ, "REPLICA_RANK": "0"}
    argv = command(tmp_path, *TRAINER, "wait")
    with subprocess.Popen(argv, env=environment, cwd=HERE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 143
    outcome = Records.of({"rendezvous_uri": str(tmp_path), "job": "test"}, 0).outcome()
    assert (outcome.status, outcome.error) == (ReplicaStatus.CANCELLED, "cancelled")
