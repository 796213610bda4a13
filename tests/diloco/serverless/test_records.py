"""Logs that grow in the store, and outcomes."""

from __future__ import annotations

import threading

import pytest

from composer_replication.diloco.serverless.protocol import ReplicaStatus
from composer_replication.diloco.serverless.records import PART_BYTES, LogWriter, Records, ReplicaOutcome
from composer_replication.diloco.store import Store, open_store
from composer_replication.types.errors import ObjectStoreError


@pytest.fixture
def store(tmp_path) -> Store:
    return open_store(tmp_path)


def test_a_log_is_there_while_it_is_written(store) -> None:
    records = Records(store, "job", 3)
    log = LogWriter(records, interval_s=0.01)
    log.feed(b"first\n")
    while records.log() != "first\n":
        pass
    log.feed(b"second\n")
    while records.log() != "first\nsecond\n":
        pass
    log.close()
    assert store.list() == ["replicas/job/00003/log/00000000"]


def test_a_long_log_is_kept_in_parts_and_read_from_its_end(store) -> None:
    records = Records(store, "job", 0)
    log = LogWriter(records, interval_s=3600)
    text = "".join(f"line {number}\n" for number in range(60_000))
    for start in range(0, len(text), 7000):
        log.feed(text[start : start + 7000].encode())
    log.close()
    assert len(store.list("replicas/job/00000/log")) == -(-len(text) // PART_BYTES)
    assert records.log() == text
    assert records.log(10) == text[-10:]
    assert records.log(PART_BYTES + 10) == text[-PART_BYTES - 10 :]


@pytest.mark.parametrize("more", [b"two", b""])
def test_what_a_failing_store_did_not_take_is_put_again(store, monkeypatch, more) -> None:
    records, failed, puts = Records(store, "job", 0), threading.Event(), []

    def put(part: int, data: bytes) -> None:
        puts.append(data)
        if len(puts) == 1:
            failed.set()
            raise ObjectStoreError("full")
        Records.put_log(records, part, data)

    monkeypatch.setattr(records, "put_log", put)
    log = LogWriter(records, interval_s=0.01)
    log.feed(b"one")
    assert failed.wait()
    if more:
        log.feed(more)
    log.close()
    assert records.log() == "one" + more.decode()
    assert log.fault is None


def test_outcomes_are_plain_json(store) -> None:
    records = Records(store, "job", 0)
    assert records.outcome() is None
    told = ReplicaOutcome(ReplicaStatus.FAILED, 3, 1.5, value={"loss": [1.0, None]}, error="why", traceback="where")
    records.end(told)
    assert records.outcome() == told


@pytest.mark.parametrize("data", [b"\xff", b"[]", b"{}", b'{"status": "lost"}'])
def test_something_else_in_its_place_is_told(store, data) -> None:
    store.put("replicas/job/00000/outcome.json", data)
    with pytest.raises(ObjectStoreError, match=r"outcome\.json is not an outcome of a replica"):
        Records(store, "job", 0).outcome()
