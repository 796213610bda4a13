"""The same job on Modal and on Hugging Face Jobs, by their own clients, over one bucket."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from containers import Container

from composer_replication.diloco.serverless import (
    HFJobsExecutor,
    ModalExecutor,
    ObjectStoreAllReduce,
    ReplicaStatus,
    ServerlessExecutor,
)
from composer_replication.types.errors import ReplicaError

ENTRYPOINT = "composer_replication.diloco.serverless.replica_entrypoint"


@dataclass
class Cloud:
    """An executor, and the machines that it rents."""

    executor: ServerlessExecutor
    container: Callable[[str], Container]
    """By the handle's id."""

    def launch(self, n: int, entrypoint: Any, uri: str, **arguments: Any):
        return self.executor.launch_replicas(n, entrypoint, {"rendezvous_uri": uri, **arguments})

    def wait_for_log(self, handle: Any, text: str) -> None:
        while text not in self.executor.logs(handle):
            assert not self.executor.poll(handle).final
            time.sleep(0.2)


@pytest.fixture(params=["modal", "modal-gpu", "hf_jobs"])
def cloud(request, store_environment, secret_names) -> Cloud:
    """`modal-gpu`: the client asks for sandboxes with a GPU by other procedures."""
    options = {"setup": "", "env": store_environment, "secrets": secret_names}
    if request.param == "hf_jobs":
        jobs = request.getfixturevalue("hub").jobs
        made = Cloud(HFJobsExecutor(hardware="a10g-large", **options), lambda job: jobs[job][1])
    else:
        sandboxes = request.getfixturevalue("modal_server").sandboxes
        gpu = "A100" if request.param == "modal-gpu" else None
        made = Cloud(ModalExecutor(image="python:3.11", gpu=gpu, **options), lambda name: sandboxes[name])
    made.executor.poll_interval_s = 0.2
    return made


def test_replicas_average_over_the_bucket(cloud, rendezvous) -> None:
    handles = cloud.launch(2, ENTRYPOINT, rendezvous)
    assert cloud.executor.collect(handles) == [{"rank": rank, "world_size": 2, "mean_rank": 0.5} for rank in range(2)]
    assert isinstance(cloud.executor, ServerlessExecutor)


def test_results_are_in_the_order_of_ranks_and_logs_in_the_store(cloud, rendezvous) -> None:
    handles = cloud.launch(3, "replicas:report", rendezvous, task="sail")
    results = cloud.executor.collect(handles)
    assert [(result["rank"], result["env"], result["task"]) for result in results] == [(r, str(r), "sail") for r in range(3)]
    assert [cloud.executor.poll(handle) for handle in handles] == [ReplicaStatus.SUCCEEDED] * 3
    assert [cloud.executor.logs(handle) for handle in handles] == [f"replica {rank} of 3\n" for rank in range(3)]
    assert {handle.backend_name for handle in handles} == {cloud.executor.backend_name}


def test_a_failure_reaches_collect_with_its_traceback_and_ends_the_others(cloud, rendezvous) -> None:
    handles = cloud.launch(2, "replicas:fail_or_wait", rendezvous, rank=1)
    with pytest.raises(ReplicaError, match=r"replica 1: ValueError: the boat has a hole(?s:.*)in fail_or_wait") as caught:
        cloud.executor.collect(handles)
    assert set(caught.value.failures) == {1}
    cloud.container(handles[0].metadata["id"]).process.wait()
    assert cloud.executor.poll(handles[0]) is ReplicaStatus.CANCELLED


def test_a_machine_that_dies_leaves_its_log(cloud, rendezvous) -> None:
    (handle,) = cloud.launch(1, "replicas:wait", rendezvous)
    cloud.wait_for_log(handle, "waiting")
    cloud.container(handle.metadata["id"]).kill()
    with pytest.raises(ReplicaError, match=r"(?:137|-9)(?s:.*)waiting"):
        cloud.executor.collect([handle])


def test_cancelled_replicas_are_gone(cloud, rendezvous) -> None:
    handles = cloud.launch(2, "replicas:wait", rendezvous)
    cloud.executor.cancel(handles)
    assert [cloud.executor.poll(handle) for handle in handles] == [ReplicaStatus.CANCELLED] * 2
    assert all(cloud.container(handle.metadata["id"]).status is not None for handle in handles)
    cloud.executor.cancel(handles)  # once more changes nothing
    with pytest.raises(ReplicaError, match="replica 0: cancelled"):
        cloud.executor.collect(handles)


def test_a_replica_ends_when_its_time_is_up(cloud, rendezvous) -> None:
    (handle,) = cloud.executor.launch_replicas(1, "replicas:wait", {"rendezvous_uri": rendezvous}, timeout=1)
    with pytest.raises(ReplicaError, match="replica 0: out of time: 1 s"):
        cloud.executor.collect([handle])
    assert cloud.executor.poll(handle) is ReplicaStatus.TIMED_OUT


def test_the_backend_ends_what_does_not_end_itself(cloud, rendezvous) -> None:
    (handle,) = cloud.launch(1, "replicas:wait", rendezvous)
    cloud.container(handle.metadata["id"]).time_is_up()
    with pytest.raises(ReplicaError, match=r"(?i)time"):
        cloud.executor.collect([handle])


def test_collecting_in_vain_leaves_replicas_running(cloud, rendezvous) -> None:
    handles = cloud.launch(2, "replicas:wait", rendezvous)
    with pytest.raises(ReplicaError, match=r"2 of 2 replicas still run after 0\.5 s: 0, 1"):
        cloud.executor.collect(handles, timeout=0.5)
    assert not any(cloud.executor.poll(handle).final for handle in handles)
    cloud.executor.cancel(handles)


def test_a_setup_that_fails_is_a_failure(cloud, rendezvous) -> None:
    cloud.executor._setup = "echo no such package >&2; exit 9"
    (handle,) = cloud.launch(1, "replicas:report", rendezvous)
    with pytest.raises(ReplicaError, match="9"):
        cloud.executor.collect([handle])


def test_another_process_collects_with_what_the_handles_say(cloud, rendezvous) -> None:
    handles = cloud.launch(1, "replicas:report", rendezvous)
    other = object.__new__(type(cloud.executor))
    other.__dict__ |= cloud.executor.__dict__ | {"_cancelled": set()}
    assert other.collect(handles)[0]["rank"] == 0


def test_the_guides_lines_for_s3(bucket) -> None:
    assert ObjectStoreAllReduce(f"{bucket}/diloco-runs/run42/", rank=0, world_size=4, timeout_s=1800.0)


def test_the_guides_lines_for_the_clouds(modal_server, hub, rendezvous, store_environment, secret_names) -> None:
    from composer_replication.diloco.serverless.hf_jobs import HFJobsExecutor
    from composer_replication.diloco.serverless.modal import ModalExecutor

    here = {"setup": "", "env": store_environment, "secrets": secret_names}
    for executor in (ModalExecutor(image="python:3.11", gpu="A100", **here), HFJobsExecutor(hardware="a10g-large", **here)):
        arguments = {"rendezvous_uri": rendezvous, "rank_env": "REPLICA_RANK"}
        handles = executor.launch_replicas(
            n_replicas=4, entrypoint="composer_replication.diloco.serverless.replica_entrypoint", entrypoint_args=arguments
        )
        results = executor.collect(handles, timeout=600)
        assert [result["mean_rank"] for result in results] == [1.5] * 4
