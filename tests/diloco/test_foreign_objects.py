"""What others have put into the folder: it is passed over, or told in one line; never a traceback, and never another outcome."""

from __future__ import annotations

import hashlib
import json
from functools import partial

import pytest
import torch
from in_threads import together, vector

from composer_replication.diloco import ObjectStoreAllReduce, open_store
from composer_replication.diloco.runs import collect, newest_round
from composer_replication.diloco.wire import header_length
from composer_replication.types.errors import ObjectStoreError, RoundError

SIZE = 600
ROUND = "rounds/model/00000000"
STRAYS = (
    *("rounds/model/.DS_Store", "floors/model/.DS_Store", "floors/model/7", "rounds/model/notes/seal", "rounds/model/²/seal"),
    *(f"{ROUND}/p/{name}" for name in ("00", "7", "²", "-1", "1.bak", ".DS_Store", "1/x")),
)


@pytest.fixture
def uri(tmp_path):
    return f"memory://{tmp_path.name}"


def members(uri, world=3, **options):
    return [
        ObjectStoreAllReduce(uri, rank=rank, world_size=world, timeout_s=600, poll_s=0.02, **options) for rank in range(world)
    ]


def held(some, number=None):
    def one(reduce):
        mean = vector(SIZE, reduce.rank)
        return reduce.start([mean], "model", number=number).wait(), mean

    return together(*(partial(one, reduce) for reduce in some))


def facts_of(block):
    return json.loads(block[24:])


def block_of(text, length=0):
    """As a replica would write it: whatever the text is, its checksum is right."""
    text = text.ljust(max(0, length - 24))
    return b"CRDILO1\n" + hashlib.blake2b(text, digest_size=16).digest() + text


def forge(uri, key, change, length=0):
    """The object, with other facts."""
    store = open_store(uri)
    found = store.get(key)
    end = length or len(found)
    facts = change(facts_of(found[:end]))
    text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    store.put(key, block_of(text, length) + found[end:])


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("key", STRAYS)
def test_objects_that_are_not_ours_change_nothing_and_stay(uri, world, key):
    store, some = open_store(uri), members(uri, world, keep_rounds=2)
    store.put(key, b"junk")
    for _ in range(3):
        found = held(some)
        assert [outcome.members for outcome, _ in found] == [tuple(range(world))] * world
        assert [outcome.refused for outcome, _ in found] == [{}] * world
        assert all(torch.equal(mean, found[0][1]) for _, mean in found)
    assert newest_round(store, "model") == 2
    collect(store, "model", 3)
    assert [left for left in store.list("rounds") if left != key] == []
    assert store.exists(key) or key.startswith(ROUND)


def test_a_stray_object_is_not_taken_for_the_replica_that_is_missing(uri):
    open_store(uri).put(f"{ROUND}/p/7", b"junk")
    some = [ObjectStoreAllReduce(uri, rank=rank, world_size=3, timeout_s=0.3) for rank in (0, 1)]
    for found in held(some):
        assert isinstance(found, RoundError)
        assert "rank 2 in round 0" in str(found) or "waits for rank" in str(found)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda facts: b"{", "its content cannot be: invalid json"),
        (lambda facts: b"[" * 100_000, "its content cannot be: invalid json: recursion limit"),
        (lambda facts: [], "its content cannot be: input should be an object"),
        (lambda facts: {**facts, "members": []}, "it names the members ()"),
        (lambda facts: {**facts, "members": ["a", "b"]}, "its members.0 cannot be: input should be a valid integer"),
        (lambda facts: {**facts, "members": [0, True]}, "its members.1 cannot be: input should be a valid integer"),
        (lambda facts: {**facts, "members": [0, 9]}, "it names the members (0, 9)"),
        (lambda facts: {**facts, "members": [0, -1]}, "it names the members (0, -1)"),
        (lambda facts: {**facts, "members": [1, 0]}, "it names the members (1, 0)"),
        (lambda facts: {**facts, "members": [0, 0]}, "it names the members (0, 0)"),
        (lambda facts: {**facts, "refused": [1, 2]}, "its refused.0 cannot be"),
        (lambda facts: {**facts, "refused": [[5, "damaged"]]}, "refuses [5]"),
        (lambda facts: {**facts, "refused": [["0", "damaged"]]}, "its refused.0.0 cannot be"),
        (lambda facts: {key: facts[key] for key in facts if key != "size"}, "its size cannot be: field required"),
    ],
)
def test_a_seal_that_cannot_be_is_one_clear_error(uri, world, change, said):
    some = members(uri, world)
    held(some)
    forge(uri, f"{ROUND}/seal", change)
    with pytest.raises(RoundError, match=f"{ROUND}/seal is damaged") as error:
        some[0].follow([torch.zeros(SIZE)], "model", 0)
    assert said in str(error.value)


def test_keys_that_are_not_ours_are_passed_over(uri):
    some = members(uri)
    found = held(some)
    for key, length in ((f"{ROUND}/seal", 0), (f"{ROUND}/p/1", header_length(3)), (f"{ROUND}/o/1", header_length(3))):
        forge(uri, key, lambda facts: {**facts, "x": 1}, length)
    mean = torch.zeros(SIZE)
    some[0].follow([mean], "model", 0)
    assert torch.equal(mean, found[0][1])


def _chunk(change):
    return lambda facts: {**facts, "chunks": [{**facts["chunks"][0], **change}, *facts["chunks"][1:]]}


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    "change",
    [
        lambda facts: b"{",
        lambda facts: {**facts, "weight": "x"},
        lambda facts: {**facts, "weight": float("nan")},
        lambda facts: {**facts, "norm": "x"},
        lambda facts: {**facts, "norm": -1.0},
        lambda facts: {**facts, "norm": float("inf")},
        lambda facts: {**facts, "chunks": {"a": 1}},
        lambda facts: {**facts, "chunks": [1]},
        lambda facts: {**facts, "rank": "1"},
        _chunk({"length": "4"}),
        _chunk({"length": -4}),
        _chunk({"length": 2**70}),
        _chunk({"length": 2**62}),
        _chunk({"digest": 5}),
    ],
)
def test_a_contribution_that_cannot_be_does_not_count(uri, world, change):
    held(members(uri, world))
    store, length, key = open_store(uri), header_length(world), "rounds/model/00000001/p/1"
    block = store.get(f"{ROUND}/p/1")
    facts = change({**facts_of(block[:length]), "round": 1})
    text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    store.put(key, block_of(text, length) + block[length:])
    found = held(members(uri, world), number=1)
    refused = [outcome.refused for outcome, _ in found]
    assert {1: "damaged"} in refused
    assert all(one in ({}, {1: "damaged"}) for one in refused)
    assert all(torch.equal(mean, found[0][1]) for _, mean in found)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: b"{",
        lambda facts: {**facts, "members": [0, 9]},
        lambda facts: {**facts, "members": "01"},
        lambda facts: {**facts, "refused": [[9, "damaged"]]},
        lambda facts: {**facts, "size": 3},
        lambda facts: {**facts, "codec": "int8"},
        lambda facts: {**facts, "payload": None},
    ],
)
def test_a_chunk_of_the_mean_that_cannot_be_is_one_clear_error(uri, change):
    some = members(uri)
    held(some)
    forge(uri, f"{ROUND}/o/1", change, header_length(3))
    with pytest.raises(RoundError, match=f"{ROUND}/o/1 is damaged: it"):
        some[0].follow([torch.zeros(SIZE)], "model", 0)


@pytest.mark.parametrize("text", [b"[]", b"", b"7", b'"x"', b"{", b"\xff", b"[" * 100_000])
def test_a_run_json_that_is_none_is_told(uri, text):
    open_store(uri).put("run.json", text)
    with pytest.raises(ObjectStoreError, match=r"run\.json is damaged: its content cannot be.*\n.*fix: remove the folder"):
        members(uri)
