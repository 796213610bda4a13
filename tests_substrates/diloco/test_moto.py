"""The store and its rounds on moto, which honours conditional writes: the same as on every other store, and every fault."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from in_threads import together, vector

from composer_replication.diloco import ObjectStoreAllReduce, open_store
from composer_replication.diloco.saved import SavedStates
from composer_replication.diloco.store import check_conditional_writes
from composer_replication.types.errors import ObjectStoreError

FAULTS = Path(__file__).resolve().parents[2] / "tests" / "tools" / "faults_diloco.py"


def test_the_store_keeps_its_promises(bucket):
    store = open_store(f"{bucket}/some/run")
    check_conditional_writes(store)
    assert store.list() == []
    store.put("a/b", b"0123456789")
    assert not store.create("a/b", b"other")
    assert store.create("a/c", b"")
    assert (store.get("a/b"), store.get("a/c"), store.get("a/d")) == (b"0123456789", b"", None)
    assert (store.get_range("a/b", 2, 3), store.get_range("a/b", 8, 30), store.get_range("a/b", 30, 1)) == (b"234", b"89", None)
    assert store.list("a") == ["a/b", "a/c"]
    store.delete("a/b", "a/c", "a/d")
    assert not store.exists("a/b")


def test_more_objects_than_a_page_holds_are_listed_and_removed(bucket):
    store = open_store(bucket)
    keys = [f"many/{number:05}" for number in range(1100)]
    for key in keys:
        store.put(key, b"")
    assert store.list("many") == keys
    store.delete(*keys)
    assert store.list() == []


def test_a_bucket_that_is_not_there_is_told(moto, bucket):
    with pytest.raises(ObjectStoreError, match=r"NoSuchBucket.*\n.*fix: make the bucket"):
        ObjectStoreAllReduce("s3://nowhere-at-all/run", rank=0, world_size=2)


@pytest.mark.parametrize(("world", "codec"), [(2, "int8"), (4, "int4"), (3, "topk")])
def test_replicas_agree(bucket, world, codec):
    def replica(rank):
        reduce = ObjectStoreAllReduce(bucket, rank=rank, world_size=world, codec=codec, timeout_s=600, keep_rounds=2)
        return [reduce.allreduce(vector(50_000, 10 * number + rank), "model") for number in range(4)]

    found = together(*(partial(replica, rank) for rank in range(world)))
    assert all(torch.equal(torch.cat(means), torch.cat(found[0])) for means in found)


def test_a_state_comes_back(bucket):
    states = SavedStates(open_store(bucket), "global")
    for number in (1, 2, 3):
        states.write(number, {"weights": torch.full((5_000_000,), float(number))})
    states.forget_before(2)
    assert states.rounds() == [2, 3]
    assert torch.equal(states.read(3)["weights"], torch.full((5_000_000,), 3.0))


def test_every_fault_ends_as_it_should():
    """Processes that are killed with SIGKILL at every step, and the rest of the table that `make faults-diloco` prints."""
    done = subprocess.run([sys.executable, FAULTS, "--moto", sys.executable], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["well"] == found["cases"] > 20
