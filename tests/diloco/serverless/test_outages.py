"""A backend that fails for a while: nothing is given up for it, nothing is left running, and no other error is hidden by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import replicas
from flaky_executor import FlakyExecutor

from composer_replication.diloco.serverless import ReplicaStatus, patience
from composer_replication.types.errors import BackendError, ConfigError, ReplicaError


class Flaky(FlakyExecutor):
    """It has no log either."""

    def _last_words(self, identity):
        raise BackendError("the service has no log now", fix="try again")


@pytest.fixture
def flaky() -> Iterator[Flaky]:
    """Its replicas end with the test."""
    made = Flaky()
    yield made
    for replica in made._replicas.values():
        replica.stop()


def running(executor, handles) -> list[bool]:
    return [not executor.poll(handle).final for handle in handles]


def test_looks_that_fail_for_a_while_cost_nothing(flaky, tmp_path) -> None:
    handles = flaky.launch_replicas(2, replicas.report, {"rendezvous_uri": tmp_path})
    flaky.silent_looks = 9
    assert [told["rank"] for told in flaky.collect(handles)] == [0, 1]
    assert flaky.silent_looks == 0


def test_an_outage_that_lasts_is_told_and_replicas_go_on(flaky, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(patience, "OUTAGE_S", 0.05)
    handles = flaky.launch_replicas(1, replicas.wait, {"rendezvous_uri": tmp_path})
    flaky.silent_looks = 1 << 30
    with pytest.raises(BackendError, match=r"the service failed \(503\)"):
        flaky.collect(handles)
    with pytest.raises(ReplicaError, match=r"still run after 0 s: 0, as far as is known: the service failed \(503\)"):
        flaky.collect(handles, timeout=0)
    flaky.silent_looks = 0
    assert running(flaky, handles) == [True]


def test_every_replica_is_told_to_end_whatever_comes_of_the_others(flaky, tmp_path) -> None:
    handles = flaky.launch_replicas(3, replicas.wait, {"rendezvous_uri": tmp_path})
    deaf = handles[1].metadata["id"]
    flaky.deaf[deaf] = 1_000
    flaky.silent_looks = 1
    with pytest.raises(
        BackendError, match=rf"may still run, as they cannot be ended: 1 \({deaf}\); the service cannot"
    ) as caught:
        flaky.cancel(handles)
    assert caught.value.fix == "end them at local"
    assert running(flaky, handles) == [False, True, False]


def test_one_that_does_not_end_at_first_is_told_again(flaky, tmp_path) -> None:
    handles = flaky.launch_replicas(2, replicas.wait, {"rendezvous_uri": tmp_path})
    flaky.deaf[handles[0].metadata["id"]] = 1
    flaky.cancel(handles)
    assert [flaky.poll(handle) for handle in handles] == [ReplicaStatus.CANCELLED] * 2


def test_nothing_hides_why_a_replica_failed(flaky, tmp_path) -> None:
    handles = flaky.launch_replicas(2, replicas.fail_or_wait, {"rendezvous_uri": tmp_path, "rank": 1})
    flaky.deaf[handles[0].metadata["id"]] = 1_000
    with pytest.raises(ReplicaError, match=r"1 of 2 replicas failed; these replicas may still run, .*: 0 \(") as caught:
        flaky.collect(handles)
    assert "replica 1: ValueError: the boat has a hole\n" in str(caught.value)
    assert caught.value.fix == "end them at local"


def test_a_log_that_cannot_be_read_hides_nothing_either(flaky, tmp_path) -> None:
    handles = flaky.launch_replicas(1, replicas.leave, {"rendezvous_uri": tmp_path, "status": 3})
    with pytest.raises(ReplicaError, match=r"ended with status 3 and no result\n  \| its log cannot be read: the service has no"):
        flaky.collect(handles)


def test_handles_of_another_executor_are_refused_before_any_is_ended(flaky, tmp_path) -> None:
    handles = flaky.launch_replicas(1, replicas.wait, {"rendezvous_uri": tmp_path})
    with pytest.raises(ConfigError, match="was launched by modal, not local"):
        flaky.cancel([*handles, type(handles[0])(1, "modal", {"id": "x"})])
    assert running(flaky, handles) == [True]
