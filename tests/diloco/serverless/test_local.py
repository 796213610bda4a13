"""Replicas as processes of this machine: results, failures, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import replicas

from composer_replication.diloco.serverless import LocalProcessExecutor, ReplicaHandle, ReplicaStatus, ServerlessExecutor
from composer_replication.diloco.serverless.records import Records
from composer_replication.types.errors import ConfigError, ReplicaError

HERE = Path(__file__).parent


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(condition) -> None:
    while not condition():
        time.sleep(0.05)


def pids(folder: Path, rank: int) -> list[int]:
    wait_for((folder / f"{rank}.pids").exists)
    return [int(pid) for pid in (folder / f"{rank}.pids").read_text().split()]


def test_results_come_in_the_order_of_ranks_from_processes_of_their_own(executor, tmp_path) -> None:
    handles = executor.launch_replicas(3, replicas.report, {"rendezvous_uri": tmp_path, "task": "sail"})
    results = executor.collect(handles, timeout=600)
    assert [(told["rank"], told["env"], told["world_size"], told["task"]) for told in results] == [
        (r, str(r), 3, "sail") for r in range(3)
    ]
    assert len({told["pid"] for told in results} | {os.getpid()}) == 4
    assert [(handle.rank, handle.backend_name) for handle in handles] == [(r, "local") for r in range(3)]
    assert [executor.poll(handle) for handle in handles] == [ReplicaStatus.SUCCEEDED] * 3
    assert executor.logs(handles[2]) == "replica 2 of 3\n"


def test_it_is_what_the_protocol_asks_for() -> None:
    executor = LocalProcessExecutor()
    assert isinstance(executor, ServerlessExecutor)
    assert (executor.backend_name, executor.supports_inter_replica_network) == ("local", True)


def test_an_exception_reaches_collect_with_its_traceback(executor, tmp_path) -> None:
    handles = executor.launch_replicas(2, replicas.fail, {"rendezvous_uri": tmp_path, "rank": 1})
    with pytest.raises(ReplicaError) as caught:
        executor.collect(handles, keep_going=True)
    message = str(caught.value)
    assert message.startswith("1 of 2 replicas failed\nreplica 1: ValueError: the boat has a hole\n")
    assert "in fail\n" in message
    assert "replica_entrypoint" not in message
    assert "runpy" not in message
    assert caught.value.results == [0, None]
    assert set(caught.value.failures) == {1}


def test_an_error_quotes_no_half_of_a_key(executor, tmp_path) -> None:
    handles = executor.launch_replicas(1, replicas.tell_a_key, {"rendezvous_uri": tmp_path})
    with pytest.raises(ReplicaError, match="the end") as caught:
        executor.collect(handles)
    assert replicas.ISSUED[-12:] not in str(caught.value)


def test_one_failure_ends_the_others(executor, tmp_path) -> None:
    handles = executor.launch_replicas(2, replicas.fail_or_wait, {"rendezvous_uri": tmp_path, "rank": 0})
    with pytest.raises(ReplicaError, match="1 of 2 replicas failed; 1 that still ran has been cancelled\nreplica 0"):
        executor.collect(handles)
    assert [executor.poll(handle) for handle in handles] == [ReplicaStatus.FAILED, ReplicaStatus.CANCELLED]


@pytest.mark.parametrize(
    ("function", "arguments", "told"),
    [
        ("replicas:die", {}, r"replica 0: killed by signal 9 \(SIGKILL\)\n  \| about to die"),
        ("replicas:leave", {"status": 3}, "replica 0: ended with status 3 and no result"),
        ("replicas:leave", {"status": 0}, "replica 0: ended with status 0 and no result"),
        ("replicas:refuse", {}, r"replica 0: ConfigError: lr is -1\n  fix: give it a sign"),
        ("replicas:strange", {}, "replica 0: ConfigError: replicas:strange returned what is not JSON"),
        ("no_such_module:run", {}, "replica 0: ConfigError: there is no module no_such_module"),
        ("replicas:no_such_function", {}, "replica 0: ConfigError: module replicas has no no_such_function"),
    ],
)
def test_how_it_failed_is_told(executor, tmp_path, function, arguments, told) -> None:
    handles = executor.launch_replicas(1, function, {"rendezvous_uri": tmp_path, **arguments})
    with pytest.raises(ReplicaError, match=told):
        executor.collect(handles)


def test_an_interpreter_that_aborts_when_it_ends_costs_no_result(executor, tmp_path) -> None:
    handles = executor.launch_replicas(1, replicas.abort_at_exit, {"rendezvous_uri": tmp_path})
    assert executor.collect(handles) == [5]
    assert executor.logs(handles[0]).endswith("replica: the trainer had returned when it was killed by signal 6 (SIGABRT)\n")


def test_a_store_that_cannot_be_written_is_told(executor, tmp_path) -> None:
    (tmp_path / "replicas").write_text("a file, where a folder is needed")
    handles = executor.launch_replicas(1, replicas.report, {"rendezvous_uri": tmp_path})
    wait_for(lambda: executor._look(handles[0].metadata["id"]).status.final)
    assert "started.json cannot be written" in executor._last_words(handles[0].metadata["id"])
    (tmp_path / "replicas").unlink()
    with pytest.raises(ReplicaError, match=r"replica 0: it ended with status 7\n(?s:.*)started.json cannot be written"):
        executor.collect(handles)


def test_a_replica_out_of_time_is_ended(executor, tmp_path) -> None:
    handles = executor.launch_replicas(1, replicas.wait, {"rendezvous_uri": tmp_path}, timeout=0.5)
    with pytest.raises(ReplicaError, match=r"replica 0: out of time: 0.5 s"):
        executor.collect(handles)
    assert executor.poll(handles[0]) is ReplicaStatus.TIMED_OUT


def test_collecting_in_vain_leaves_replicas_running(executor, tmp_path) -> None:
    handles = executor.launch_replicas(2, replicas.wait, {"rendezvous_uri": tmp_path})
    with pytest.raises(ReplicaError, match=r"2 of 2 replicas still run after 0.1 s: 0, 1\n  fix: collect them again"):
        executor.collect(handles, timeout=0.1)
    assert [executor.poll(handle) for handle in handles] == [ReplicaStatus.RUNNING] * 2


def test_cancelled_replicas_are_gone_with_what_they_started(executor, tmp_path) -> None:
    handles = executor.launch_replicas(2, replicas.wait_with_child, {"rendezvous_uri": tmp_path, "folder": str(tmp_path)})
    running = [pid for rank in range(2) for pid in pids(tmp_path, rank)]
    executor.cancel(handles)
    assert all(map(gone, running))
    assert [executor.poll(handle) for handle in handles] == [ReplicaStatus.CANCELLED] * 2
    with pytest.raises(ReplicaError, match="replica 1: cancelled"):
        executor.collect(handles)


@pytest.mark.slow
def test_one_that_does_not_listen_is_killed(executor, tmp_path) -> None:
    handles = executor.launch_replicas(1, replicas.stubborn, {"rendezvous_uri": tmp_path})
    wait_for(lambda: "waiting" in executor.logs(handles[0]))
    executor.cancel(handles)
    assert executor.poll(handles[0]) is ReplicaStatus.CANCELLED


def test_nothing_is_left_when_the_launching_process_is_killed(tmp_path) -> None:
    program = (
        "import replicas\n"
        "from composer_replication.diloco.serverless import LocalProcessExecutor\n"
        f"arguments = {{'rendezvous_uri': {str(tmp_path)!r}, 'folder': {str(tmp_path)!r}}}\n"
        "LocalProcessExecutor().launch_replicas(2, replicas.wait_with_child, arguments)\n"
        "replicas.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=HERE, stdout=subprocess.DEVNULL) as launcher:
        running = [pid for rank in range(2) for pid in pids(tmp_path, rank)]
        assert not any(map(gone, running))
        launcher.send_signal(signal.SIGKILL)
    try:
        wait_for(lambda: all(map(gone, running)))
    finally:
        for pid in running:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)
    told = [
        Records.of({"rendezvous_uri": str(tmp_path), "job": next((tmp_path / "replicas").iterdir()).name}, rank)
        for rank in range(2)
    ]
    assert {record.outcome().error for record in told} == {"the process that launched it has ended"}


def test_a_handle_belongs_to_who_launched_it(executor, tmp_path) -> None:
    handles = executor.launch_replicas(1, replicas.report, {"rendezvous_uri": tmp_path})
    executor.collect(handles)
    with pytest.raises(ConfigError, match="none of this executor's"):
        LocalProcessExecutor().poll(handles[0])
    with pytest.raises(ConfigError, match="replica 0 was launched by modal, not local"):
        executor.poll(ReplicaHandle(0, "modal", handles[0].metadata))


def test_jobs_in_one_store_do_not_mix(executor, tmp_path) -> None:
    first = executor.launch_replicas(1, replicas.report, {"rendezvous_uri": tmp_path, "job": "first"})
    second = executor.launch_replicas(1, replicas.report, {"rendezvous_uri": tmp_path, "job": "second"})
    assert [executor.collect(handles)[0]["job"] for handles in (first, second)] == ["first", "second"]


def test_one_replica_of_a_job_is_launched_in_the_place_of_another(executor, tmp_path) -> None:
    handles = executor.launch_replicas(3, replicas.report, {"rendezvous_uri": tmp_path}, ranks=[2, 0])
    assert [handle.rank for handle in handles] == [0, 2]
    assert [(told["rank"], told["world_size"]) for told in executor.collect(handles)] == [(0, 3), (2, 3)]


@pytest.mark.parametrize("ranks", [[], [1, 1], [2], [-1]])
def test_ranks_are_some_of_the_jobs(executor, tmp_path, ranks) -> None:
    with pytest.raises(ConfigError, match="ranks is"):
        executor.launch_replicas(2, replicas.report, {"rendezvous_uri": tmp_path}, ranks=ranks)


def test_a_gpu_by_name_is_refused(executor, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"given a GPU by name \(A100\)"):
        executor.launch_replicas(1, replicas.report, {"rendezvous_uri": tmp_path}, gpu="A100")
