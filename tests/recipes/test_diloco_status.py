"""What replicas say of themselves, and what whoever watches makes of something else in its place."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest

from composer_replication.diloco.store import open_store
from composer_replication.recipes.diloco.status import Status, read_status, write_status

SAID = Status(
    rank=1,
    arm="main",
    step=3,
    steps=10,
    round=1,
    members=2,
    bytes_up=5,
    bytes_down=6,
    stall_s=0.5,
    seconds=7,
    reward=None,
)
FACTS = asdict(SAID)


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path)


@pytest.mark.parametrize("reward", [None, 0.25, 1, math.nan])
def test_a_status_comes_back(store, reward):
    assert read_status(store, 1) is None
    said = replace(SAID, reward=reward)
    write_status(store, said)
    found = read_status(store, 1)
    assert repr(found) == repr(replace(said, seconds=7.0, reward=None if reward is None else float(reward)))


def test_a_field_of_a_later_version_is_passed_over(store):
    store.put("status/00001.json", json.dumps({**FACTS, "later": [1]}).encode())
    assert read_status(store, 1) == SAID


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        json.dumps({key: FACTS[key] for key in FACTS if key != "steps"}).encode(),
        json.dumps({**FACTS, "step": "3"}).encode(),
        json.dumps({**FACTS, "step": None}).encode(),
        json.dumps({**FACTS, "rank": 0}).encode(),
    ],
)
def test_what_is_no_status_of_this_replica_is_as_if_it_had_said_nothing(store, text):
    store.put("status/00001.json", text)
    assert read_status(store, 1) is None
