"""The policy of a job of replicas: from rank 0's checkpoint through the store to whoever started the job."""

from __future__ import annotations

import pytest

from composer_replication.diloco.store import open_store
from composer_replication.recipes.diloco.result import fetch_policy, put_policy
from composer_replication.types.errors import ObjectStoreError, StorageError

POLICY = {"config.json": b"{}", "model.safetensors": b"\x00weights", "tokenizer.json": b"[]"}


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "ckpt" / "step_00004"
    folder.mkdir(parents=True)
    for name, data in {**POLICY, "learner.pt": b"optimizer", "loop.json": b"{}", "MANIFEST.sha256": b""}.items():
        (folder / name).write_bytes(data)
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_policy_comes_back_without_what_only_a_resume_needs(store, checkpoint, tmp_path):
    put_policy(store, "main", checkpoint)
    for _ in range(2):  # a job may be resumed when all is done
        found = fetch_policy(store, "main", tmp_path / "here")
        assert found == tmp_path / "here" / "main" / "step_00004"
        assert content(found) == POLICY
    assert [path.name for path in found.parent.iterdir()] == ["step_00004"]


def test_a_job_that_did_not_end_has_none(store, tmp_path):
    with pytest.raises(ObjectStoreError, match="has no policy"):
        fetch_policy(store, "main", tmp_path / "here")


@pytest.mark.parametrize("damage", [lambda s, key: s.put(key, b"other"), lambda s, key: s.delete(key)], ids=["other", "gone"])
def test_what_is_not_what_was_put_is_refused_and_nothing_is_left(store, checkpoint, tmp_path, damage):
    put_policy(store, "main", checkpoint)
    damage(store, "policy/main/model.safetensors")
    with pytest.raises(ObjectStoreError, match=r"model\.safetensors: missing or not what was put"):
        fetch_policy(store, "main", tmp_path / "here")
    assert list((tmp_path / "here" / "main").iterdir()) == []


def test_a_disk_that_refuses_is_named(store, checkpoint, tmp_path):
    put_policy(store, "main", checkpoint)
    (tmp_path / "here").write_text("a file")
    with pytest.raises(StorageError, match="step_00004: the policy could not be written"):
        fetch_policy(store, "main", tmp_path / "here")


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b'{"folder": "step_00004"}',
        b'{"folder": "../elsewhere", "sha256": {}}',
        b'{"folder": "step_00004", "sha256": {"../../elsewhere": ""}}',
    ],
)
def test_a_manifest_that_is_damaged_or_leads_elsewhere_is_refused(store, checkpoint, tmp_path, manifest):
    put_policy(store, "main", checkpoint)
    store.put("policy/main/manifest.json", manifest)
    with pytest.raises(ObjectStoreError, match=r"manifest\.json"):
        fetch_policy(store, "main", tmp_path / "here")
    assert not (tmp_path / "here").exists()
