"""A job's replicas: launched again where they are lost, ended when the job ends, and known to whoever starts it again."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import tomli_w
from flaky_executor import FlakyExecutor

from composer_replication.config import load_config
from composer_replication.diloco.serverless import ReplicaHandle, patience
from composer_replication.observe.files import exclusive
from composer_replication.recipes.diloco import fleet
from composer_replication.recipes.diloco import learner_state as kept
from composer_replication.recipes.diloco.job import check_job, run_job
from composer_replication.recipes.diloco.learner_state import LearnerState
from composer_replication.types.errors import BackendError, ConfigError, ReplicaError, StorageError


class Rented(FlakyExecutor):
    """Its replicas have another name than processes of this machine, and at times it has no machine for them."""

    backend_name = "rented"

    def __init__(self) -> None:
        super().__init__()
        self.refused_launches = 0

    def _start(self, launch, rank, gpu):
        if self.refused_launches and len(self._replicas) >= launch.world_size:
            self.refused_launches -= 1
            raise BackendError("no machine is free", fix="try again")
        return super()._start(launch, rank, gpu)

    def running(self) -> list[str]:
        return [identity for identity, replica in self._replicas.items() if replica.status() is None]


@pytest.fixture
def executor(monkeypatch) -> Iterator[Rented]:
    """Its replicas end with the test."""
    for module, name in ((fleet, "_LOOK_S"), (kept, "_LOOK_S"), (fleet, "_AGAIN_S")):
        monkeypatch.setattr(module, name, 0.01)
    made = Rented()
    yield made
    for replica in made._replicas.values():
        replica.stop()


@pytest.fixture
def job(tmp_path, monkeypatch):
    """`job(function, restarts)` is the run of a job whose two replicas call it."""

    def load(function="report", restarts=2):
        monkeypatch.setattr(fleet, "ENTRY", f"fleet_replicas:{function}")
        (tmp_path / "tasks").mkdir(exist_ok=True)
        diloco = {"enabled": True, "executor": {"restarts": restarts}}
        path = tmp_path / "run.toml"
        path.write_text(tomli_w.dumps({"steps": 20, "model": {"path": "p"}, "tasks": {"train": "tasks"}, "diloco": diloco}))
        return load_config(path, ["--out", str(tmp_path / "runs")])

    return load


def run(config, executor, seen=lambda rows: None):
    """What the job returns, and what it has told."""
    told: list[str] = []
    return run_job(config, executor, seen, told.append), told


class Interrupt:
    """Interrupts a job at its first look."""

    def __init__(self, before=lambda: None) -> None:
        self.before = before

    def __call__(self, rows) -> None:
        self.before()
        raise KeyboardInterrupt


def test_a_lost_replica_is_launched_again_and_the_user_is_told(executor, job) -> None:
    results, told = run(job("lose_rank_1_once"), executor)
    assert results == [20, 21]
    assert told == ["replica 1 was lost (it ended with status -9) and is started again (restart 1 of 2)"]


def test_a_launch_that_is_refused_is_one_of_the_restarts(executor, job) -> None:
    executor.refused_launches = 1
    results, told = run(job("lose_rank_1_once"), executor)
    assert results == [20, 21]
    assert told[0].endswith("could not be started again (restart 1 of 2): no machine is free")
    assert told[1].endswith("is started again (restart 2 of 2)")


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_replica_that_is_lost_too_often_ends_the_job(executor, job, restarts) -> None:
    with pytest.raises(
        ReplicaError, match=r"1 of 2 replicas failed; 1 that still ran has been cancelled\nreplica 1: it ended"
    ) as caught:
        run(job("lose_rank_1_always", restarts), executor)
    assert "--resume" in caught.value.fix
    assert ("replica 1 had been started again 1 times" in str(caught.value)) == bool(restarts)
    assert len(executor._replicas) == 2 + restarts
    assert executor.running() == []


def test_why_a_replica_failed_is_told_with_its_restart(executor, job) -> None:
    told: list[str] = []
    with pytest.raises(ReplicaError, match="ValueError: the boat has a hole"):
        run_job(job("fail_in_rank_1", 1), executor, lambda rows: None, told.append)
    assert told == ["replica 1 was lost (ValueError: the boat has a hole) and is started again (restart 1 of 1)"]


def test_what_another_replica_would_meet_too_ends_the_job_at_once(executor, job) -> None:
    with pytest.raises(ReplicaError, match="ConfigError: lr is -1"):
        run(job("refuse"), executor)
    assert len(executor._replicas) == 2


def test_a_backend_that_fails_for_a_while_costs_nothing(executor, job) -> None:
    executor.silent_looks = 9
    assert run(job(), executor) == ([0, 1], [])
    assert executor.silent_looks == 0


def test_one_that_stays_silent_ends_the_job_and_replicas_with_it(executor, job, monkeypatch) -> None:
    monkeypatch.setattr(patience, "OUTAGE_S", 0.05)

    def silent(rows) -> None:
        executor.silent_looks = 1 << 30

    with pytest.raises(BackendError, match=r"the service failed \(503\)"):
        run(job("wait"), executor, silent)
    executor.silent_looks = 0
    assert executor.running() == []


def test_a_job_that_has_succeeded_ends_nothing(executor, job, monkeypatch) -> None:
    def refuse(handles) -> None:
        if handles:
            raise BackendError("the service failed (503)", fix="try again")

    monkeypatch.setattr(executor, "cancel", refuse)
    assert run(job(), executor)[0] == [0, 1]


def test_replicas_that_cannot_be_ended_are_kept_and_hide_nothing(executor, job) -> None:
    config = job("fail_in_rank_1", 0)
    executor.ends_none = True
    with pytest.raises(
        ReplicaError, match=r"replicas may still run, .*: 0 \(.*\nreplica 1: ValueError: the boat has a hole"
    ) as caught:
        run(config, executor)
    assert str(caught.value).count("may still run") == 1
    assert caught.value.fix.startswith("end them at rented; then see why")
    assert [handle.rank for handle in LearnerState(config).read()] == [0, 1]


def test_handles_are_kept_while_replicas_run(executor, job) -> None:
    config, seen = job("lose_rank_1_once"), []

    def look(rows) -> None:
        handles = LearnerState(config).read()
        assert handles == [handle for handle, *_ in rows]
        seen.append(handles[1].metadata["id"])

    run(config, executor, look)
    assert list(dict.fromkeys(seen)) == [identity for identity in executor._replicas if identity in seen]
    assert len(set(seen)) == 2
    assert not LearnerState(config).path.exists()


def test_an_interruption_ends_every_replica(executor, job) -> None:
    config = job("wait")
    with pytest.raises(KeyboardInterrupt):
        run(config, executor, Interrupt())
    assert executor.running() == []
    assert not LearnerState(config).path.exists()


def test_replicas_that_an_interruption_cannot_end_are_named_and_the_next_start_ends_them(executor, job) -> None:
    config = job("wait")
    with pytest.raises(BackendError, match=r"interrupted; these replicas may still run, .*: 0 \(.*; the service cannot end"):
        run(config, executor, Interrupt(lambda: setattr(executor, "ends_none", True)))
    earlier = executor.running()
    assert len(earlier) == 2
    first = LearnerState(config).read()[0].metadata["id"]
    with pytest.raises(ConfigError, match="names replicas of an earlier start") as caught:
        check_job(config, resume=False)
    assert "--resume" in caught.value.fix
    check_job(config, resume=True)
    with pytest.raises(BackendError, match=rf"of an earlier start may still run: 0 \({first}, rented\)") as caught:
        run(config, executor)
    assert str(LearnerState(config).path) in caught.value.fix
    assert executor.running() == earlier
    executor.ends_none = False
    running: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(config, executor, Interrupt(lambda: running.extend(executor.running())))
    assert not set(running) & set(earlier)
    assert len(running) == 2


def test_replicas_of_another_executor_are_named(executor, job) -> None:
    config = job()
    LearnerState(config).put([ReplicaHandle(0, "modal", {"id": "sb-1"})])
    with pytest.raises(BackendError, match=r"may still run: 0 \(sb-1, modal\); replica 0 was launched by modal, not rented"):
        run(config, executor)
    assert executor._replicas == {}


def test_local_replicas_end_with_their_process_and_are_waited_for(executor, job, monkeypatch) -> None:
    config = job()
    LearnerState(config).put([ReplicaHandle(0, "local", {"id": "a-1"}), ReplicaHandle(1, "local", {"id": "a-2"})])
    folder = LearnerState(config).path.parent / "replica_00001"
    folder.mkdir()
    monkeypatch.setattr(kept, "_END_S", 0.05)
    with exclusive(folder), pytest.raises(BackendError, match=r"they have not ended within 0\.05 s"):
        run(config, executor)
    assert run(config, executor)[0] == [0, 1]


@pytest.mark.parametrize("data", ["", "[1]", '[{"rank": 0}]', '{"rank": 0}'])
def test_damaged_handles_are_told(executor, job, data) -> None:
    config = job()
    LearnerState(config).put([])
    LearnerState(config).path.write_text(data)
    with pytest.raises(StorageError, match=r"replicas\.json has no handles of replicas"):
        run(config, executor)


def test_a_job_is_run_once_at_a_time(executor, job) -> None:
    config = job()
    LearnerState(config).put([ReplicaHandle(0, "modal", {"id": "sb-1"})])
    with exclusive(LearnerState(config).path.parent), pytest.raises(ConfigError, match="another process"):
        run(config, executor)
    assert json.loads(LearnerState(config).path.read_text())[0]["metadata"] == {"id": "sb-1"}
