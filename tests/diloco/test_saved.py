"""States in the store: found once they are whole, never half, and not read where they are damaged."""

from __future__ import annotations

import pytest
import torch

from composer_replication.diloco import open_store
from composer_replication.diloco.saved import SavedStates
from composer_replication.types.errors import CheckpointError


@pytest.fixture
def saved(tmp_path):
    return SavedStates(open_store(tmp_path), "snapshots")


def test_a_state_is_written_once_and_read_as_it_was(saved):
    assert saved.rounds() == []
    assert saved.write(3, {"weights": torch.arange(4.0), "step": 7})
    assert not saved.write(3, {"weights": torch.zeros(4), "step": 8})
    found = saved.read(3)
    assert torch.equal(found["weights"], torch.arange(4.0))
    assert found["step"] == 7


def test_without_its_manifest_a_state_is_not_there(saved):
    saved.write(1, {"step": 1})
    saved.write(2, {"step": 2})
    saved.store.delete("snapshots/00000002/manifest.json")
    assert saved.rounds() == [1]


def test_states_before_a_round_are_removed_whole(saved):
    for number in (1, 2, 3):
        saved.write(number, {"step": number})
    saved.forget_before(3)
    assert saved.rounds() == [3]
    assert len(saved.store.list("snapshots")) == 2


@pytest.mark.parametrize("damage", ["bytes", "gone", "manifest"])
def test_a_damaged_state_is_one_error_that_names_it(saved, damage):
    saved.write(1, {"step": 1})
    (key,) = [key for key in saved.store.list("snapshots") if not key.endswith("manifest.json")]
    if damage == "gone":
        saved.store.delete(key)
    else:
        saved.store.put(key if damage == "bytes" else "snapshots/00000001/manifest.json", b"{}")
    with pytest.raises(CheckpointError, match="snapshots/00000001") as refused:
        saved.read(1)
    assert "delete this state" in refused.value.fix


@pytest.mark.parametrize(
    "key", [".DS_Store", "²/manifest.json", "7/manifest.json", "notes/00.txt", "0/x", "00000001/x/manifest.json"]
)
def test_what_others_put_there_is_no_state_and_stays(saved, key):
    saved.store.put(f"snapshots/{key}", b"junk")
    saved.write(1, {"step": 1})
    saved.write(2, {"step": 2})
    assert saved.rounds() == [1, 2]
    saved.forget_before(2)
    assert saved.rounds() == [2]
    assert saved.store.exists(f"snapshots/{key}")
