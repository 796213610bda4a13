"""Replicas through SkyPilot's own client: the requests that it sends, and what comes of their answers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import pytest
from sky import exceptions
from sky_server import SkyServer

from composer_replication.diloco.serverless import ReplicaStatus, ServerlessExecutor, SkyExecutor
from composer_replication.errors import BackendError, ConfigError, ReplicaError

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
    shared_server.fault = None
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
