"""Replicas through SkyPilot's own client: the requests that it sends, and what comes of their answers."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Iterator

import pytest
from sky import exceptions
from sky_server import SkyServer

from composer_replication.diloco.serverless import ReplicaStatus, ServerlessExecutor, SkyExecutor
from composer_replication.types.errors import BackendError, ConfigError, ReplicaError

ENTRYPOINT = "composer_replication.diloco.serverless.replica_entrypoint"


@pytest.fixture(scope="module")
def shared_server(listener) -> Iterator[SkyServer]:
    server = SkyServer(listener)
    yield server
    server.close()


@pytest.fixture
def server(shared_server) -> SkyServer:
    """One that has forgotten what other tests asked for: the client remembers its address."""
    shared_server.launches.clear()
    shared_server.downed.clear()
    shared_server.fault = shared_server.down_fault = None
    return shared_server


def executor(**options) -> SkyExecutor:
    made = SkyExecutor(**{"setup": "", **options})
    made.poll_interval_s = 0.2
    return made


def test_what_a_launch_asks_for(server, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("THE_KEY", "a secret of the tests")
    asked = executor(
        infra="aws/us-east-1",
        gpu="A100:8",
        cpus="8+",
        memory="64+",
        use_spot=True,
        setup="true",
        env={"COLOUR": "blue"},
        secrets=["THE_KEY"],
    )
    (handle,) = asked.launch_replicas(1, "replicas:report", {"rendezvous_uri": tmp_path, "task": "it's"})
    ((body, task),) = server.launches
    assert body["cluster_name"] == f"replica-{handle.metadata['job']}-0"
    assert (body["dryrun"], body["retry_until_up"], task["name"]) == (False, False, body["cluster_name"])
    resources = task["resources"]
    assert (resources["infra"], resources["accelerators"], resources["use_spot"]) == ("aws/us-east-1", {"A100": 8}, True)
    assert (resources["cpus"], resources["memory"], resources["image_id"]) == ("8+", "64+", {"us-east-1": "docker:python:3.11"})
    assert resources["autostop"]["down"] is True
    assert task["envs"] == {"COLOUR": "blue", "REPLICA_RANK": "0"}
    assert task["secrets"] == {"THE_KEY": "a secret of the tests"}
    words = shlex.split(task["run"])
    assert words[:4] == ["sh", "-c", 'true && exec "$@"', "replica"]
    assert words[4:7] == ["python", "-m", ENTRYPOINT]
    assert json.loads(words[words.index("--trainer-kwargs-json") + 1]) == {"task": "it's"}
    assert asked.collect([handle])[0]["task"] == "it's"


def test_replicas_average_over_a_shared_folder(server, tmp_path) -> None:
    asked = executor()
    assert isinstance(asked, ServerlessExecutor)
    handles = asked.launch_replicas(2, ENTRYPOINT, {"rendezvous_uri": tmp_path})
    assert asked.collect(handles) == [{"rank": rank, "world_size": 2, "mean_rank": 0.5} for rank in range(2)]
    assert [asked.poll(handle) for handle in handles] == [ReplicaStatus.SUCCEEDED] * 2


def test_a_failure_reaches_collect_and_takes_the_others_down(server, tmp_path) -> None:
    asked = executor()
    handles = asked.launch_replicas(2, "replicas:fail_or_wait", {"rendezvous_uri": tmp_path, "rank": 1})
    with pytest.raises(ReplicaError, match=r"replica 1: ValueError: the boat has a hole(?s:.*)in fail_or_wait"):
        asked.collect(handles)
    assert server.downed == [handles[0].metadata["id"].partition("/")[0]]
    assert asked.poll(handles[0]) is ReplicaStatus.CANCELLED


def test_a_cluster_that_is_gone_has_its_outcome_in_the_store(server, tmp_path) -> None:
    asked = executor()
    handles = asked.launch_replicas(1, "replicas:report", {"rendezvous_uri": tmp_path})
    server.clusters[handles[0].metadata["id"].partition("/")[0]].process.wait()
    server.downed.append(handles[0].metadata["id"].partition("/")[0])
    assert asked.collect(handles)[0]["rank"] == 0


def test_a_machine_that_is_taken_back_is_a_failure(server, tmp_path) -> None:
    asked = executor()
    handles = asked.launch_replicas(1, "replicas:wait", {"rendezvous_uri": tmp_path})
    name = handles[0].metadata["id"].partition("/")[0]
    server.clusters[name].kill()
    server.downed.append(name)
    with pytest.raises(ReplicaError, match=f"replica 0: its cluster {name} is gone"):
        asked.collect(handles)


def clusters(server, handles):
    """The machines of replicas."""
    return [server.clusters[handle.metadata["id"].partition("/")[0]] for handle in handles]


def wait_for_log(asked, handle, text) -> None:
    while text not in asked.logs(handle):
        assert not asked.poll(handle).final
        time.sleep(0.2)


def test_cancelled_replicas_are_gone_and_their_clusters_with_them(server, tmp_path) -> None:
    asked = executor()
    handles = asked.launch_replicas(2, "replicas:wait", {"rendezvous_uri": tmp_path})
    wait_for_log(asked, handles[0], "waiting")
    asked.cancel(handles)
    assert [asked.poll(handle) for handle in handles] == [ReplicaStatus.CANCELLED] * 2
    assert sorted(server.downed) == sorted(handle.metadata["id"].partition("/")[0] for handle in handles)
    assert all(cluster.status is not None for cluster in clusters(server, handles))
    asked.cancel(handles)  # once more changes nothing
    assert len(server.downed) == 2
    with pytest.raises(ReplicaError, match=r"replica 0: cancelled(?s:.*)waiting"):
        asked.collect(handles)


def test_cancelling_leaves_what_has_ended_as_it_is(server, tmp_path) -> None:
    asked = executor()
    handles = asked.launch_replicas(1, "replicas:report", {"rendezvous_uri": tmp_path})
    (result,) = asked.collect(handles)
    asked.cancel(handles)
    assert server.downed == []
    assert asked.collect(handles) == [result]


def test_a_cluster_that_cannot_be_taken_down_is_told(server, tmp_path) -> None:
    asked = executor()
    handles = asked.launch_replicas(1, "replicas:wait", {"rendezvous_uri": tmp_path})
    server.down_fault = exceptions.ResourcesUnavailableError("the cloud does not answer")
    with pytest.raises(BackendError, match="the cloud does not answer"):
        asked.cancel(handles)
    assert asked.poll(handles[0]) in (ReplicaStatus.PENDING, ReplicaStatus.RUNNING)
    server.down_fault = None
    asked.cancel(handles)
    assert asked.poll(handles[0]) is ReplicaStatus.CANCELLED


def test_a_replica_ends_when_its_time_is_up(server, tmp_path) -> None:
    asked = executor()
    (handle,) = asked.launch_replicas(1, "replicas:wait", {"rendezvous_uri": tmp_path}, timeout=1)
    with pytest.raises(ReplicaError, match="replica 0: out of time: 1 s"):
        asked.collect([handle])
    assert asked.poll(handle) is ReplicaStatus.TIMED_OUT
    assert clusters(server, [handle])[0].process.wait() == 124


def test_collecting_in_vain_leaves_replicas_running(server, tmp_path) -> None:
    asked = executor()
    handles = asked.launch_replicas(2, "replicas:wait", {"rendezvous_uri": tmp_path})
    with pytest.raises(ReplicaError, match=r"2 of 2 replicas still run after 0\.5 s: 0, 1"):
        asked.collect(handles, timeout=0.5)
    assert not any(asked.poll(handle).final for handle in handles)
    assert server.downed == []
    asked.cancel(handles)


def test_one_that_cannot_be_started_leaves_no_other(server, tmp_path, monkeypatch) -> None:
    launch, one_at_a_time = server.launch, threading.Lock()

    def full(body):
        with one_at_a_time:
            server.fault = exceptions.ResourcesUnavailableError("no A100 anywhere") if server.launches else None
            return launch(body)

    monkeypatch.setattr(server, "launch", full)
    with pytest.raises(BackendError, match="no A100 anywhere"):
        executor().launch_replicas(3, "replicas:wait", {"rendezvous_uri": tmp_path})
    started = server.launches[0][0]["cluster_name"]
    assert started in server.downed
    assert server.clusters[started].status is not None


def test_another_process_collects_and_cancels_with_what_the_handles_say(server, tmp_path) -> None:
    done = executor().launch_replicas(1, "replicas:report", {"rendezvous_uri": tmp_path})
    assert executor().collect(done)[0]["rank"] == 0
    running = executor().launch_replicas(1, "replicas:wait", {"rendezvous_uri": tmp_path})
    executor().cancel(running)
    assert clusters(server, running)[0].status is not None


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        (exceptions.ResourcesUnavailableError("no A100 anywhere"), BackendError, "no A100 anywhere"),
        (exceptions.NoCloudAccessError("no cloud is enabled"), ConfigError, "SkyPilot has no access: no cloud is enabled"),
    ],
)
def test_what_the_server_refuses_is_told(server, tmp_path, fault, kind, told) -> None:
    server.fault = fault
    with pytest.raises(kind, match=told):
        executor().launch_replicas(2, "replicas:report", {"rendezvous_uri": tmp_path})


def test_resources_that_are_none_are_told(server, tmp_path) -> None:
    with pytest.raises(ConfigError, match="refuses or fails"):
        executor(cpus="many").launch_replicas(1, "replicas:report", {"rendezvous_uri": tmp_path})
    assert server.launches == []
