"""What is Hugging Face's own: what a job is asked for, and a service that refuses or is not there."""

from __future__ import annotations

import pytest

from composer_replication.diloco.serverless import HFJobsExecutor
from composer_replication.types.errors import BackendError, ConfigError, ReplicaError

JOB = ("m:f", {"rendezvous_uri": "s3://bucket/run"})


def test_what_a_job_is_asked_for(hub, monkeypatch) -> None:
    monkeypatch.setenv("THE_KEY", "a secret of the tests")
    executor = HFJobsExecutor(
        hardware="a10g-large", image="ghcr.io/me/it:1", setup="true", env={"COLOUR": "blue"}, secrets=["THE_KEY"]
    )
    (handle,) = executor.launch_replicas(1, *JOB, timeout=100)
    spec = hub.jobs[handle.metadata["id"]][0]
    assert (spec["flavor"], spec["dockerImage"], spec["timeoutSeconds"]) == ("a10g-large", "ghcr.io/me/it:1", 220)
    assert spec["environment"] == {"COLOUR": "blue", "REPLICA_RANK": "0"}
    assert spec["secrets"] == {"THE_KEY": "a secret of the tests"}
    assert spec["command"][:4] == ["sh", "-c", 'true && exec "$@"', "replica"]
    assert spec["labels"]["name"] == f"replica-{handle.metadata['job']}-0"


def test_one_that_cannot_be_started_leaves_no_other(hub) -> None:
    begin = hub.facts

    def facts(job: str):
        hub.unpaid = len(hub.jobs) >= 2
        return begin(job)

    hub.facts = facts
    with pytest.raises(ConfigError, match=r"Hugging Face wants to be paid: .*insufficient") as caught:
        HFJobsExecutor(setup="sleep 1000").launch_replicas(20, *JOB)
    assert "add credits" in str(caught.value.fix)
    assert all(container.status is not None for _, container in hub.jobs.values())
    assert len(hub.cancelled) == len(hub.jobs) < 20


def test_one_that_cannot_be_ended_is_named(hub) -> None:
    begin, identities = hub.facts, []

    def facts(job: str):
        identities.append(job)
        hub.out_of_order = len(hub.jobs) >= 2
        return begin(job)

    hub.facts = facts
    with pytest.raises(
        BackendError, match=r"the data center is on fire; and these replicas still run, as they cannot be ended: \w{24}"
    ) as caught:
        HFJobsExecutor(setup="sleep 1000").launch_replicas(20, *JOB)
    assert all(identity in str(caught.value) for identity in identities)


@pytest.mark.parametrize(
    ("break_it", "kind", "told"),
    [
        (lambda hub, patch: patch.setenv("HF_TOKEN", "hf_other"), ConfigError, r"refuses the token \(401\)"),
        (lambda hub, patch: setattr(hub, "unpaid", True), ConfigError, "wants to be paid"),
        (lambda hub, patch: setattr(hub, "out_of_order", True), BackendError, r"failed \(503\): the data center is on fire"),
        (
            lambda hub, patch: patch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9"),
            BackendError,
            "does not answer",
        ),
    ],
)
def test_what_the_service_answers_is_told(hub, monkeypatch, break_it, kind, told) -> None:
    break_it(hub, monkeypatch)
    with pytest.raises(kind, match=told) as caught:
        HFJobsExecutor().launch_replicas(1, *JOB)
    assert caught.value.fix
    assert hub.jobs == {}


def test_an_unknown_flavor_is_told_in_the_services_words(hub) -> None:
    with pytest.raises(ConfigError, match=r"refuses the request \(400\): .*Invalid flavor: a11g"):
        HFJobsExecutor(hardware="a11g").launch_replicas(1, *JOB)


def test_a_container_that_never_reached_the_store_is_shown_by_its_own_log(hub, bucket, rendezvous) -> None:
    executor = HFJobsExecutor(setup="echo no such package; exit 9")
    handles = executor.launch_replicas(1, "m:f", {"rendezvous_uri": rendezvous})
    executor.poll_interval_s = 0.2
    with pytest.raises(ReplicaError, match=r"exit code: 9(?s:.*)no such package"):
        executor.collect(handles)
