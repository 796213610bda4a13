"""Weights that reach a server through an object store: what is written, what travels, and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from composer_replication.diloco.store import open_store
from composer_replication.rollouts.serving.through_store import ThroughStore
from composer_replication.types.errors import ConfigError, ModelError, ObjectStoreError
from composer_replication.weights.follow import folder_of, follow
from composer_replication.weights.publish import WeightPublisher
from composer_replication.weights.pull import WeightPuller

COMPOSER = (sys.executable, "-c", "from composer_replication.cli import main; main()")
RUN = "my-run"


class Policy:
    """A policy of one large matrix and one small one that changes."""

    version, is_adapter = 0, False

    def __init__(self) -> None:
        self.state = {"body": torch.randn(256, 256).bfloat16(), "head": torch.zeros(4)}

    def save(self, folder: Path) -> None:
        save_file(self.state, folder / "model.safetensors")
        (folder / "config.json").write_text('{"model_type": "qwen3"}')
        (folder / "tokenizer.json").write_text("{}" * 1000)

    def logprobs(self, prompt_ids, ids):
        raise AssertionError("no server asks here")


def same(folder: Path, policy: Policy) -> bool:
    found = load_file(folder / "model.safetensors")
    return found.keys() == policy.state.keys() and all(torch.equal(found[name], policy.state[name]) for name in found)


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "store").at(RUN)


def started(tmp_path: Path) -> subprocess.Popen[str]:
    command = [*COMPOSER, "weights", "follow", tmp_path / "store", "--run", RUN, "--into", tmp_path / "there"]
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
def test_a_follower_writes_what_is_sent_and_after_a_kill_goes_on_with_patches(store, tmp_path):
    transfer, policy = ThroughStore(store, tmp_path / "scratch", run=RUN, timeout_s=120), Policy()
    with started(tmp_path) as follower:
        first = transfer.send(policy, "composer-0123abcd-0-1")
        assert first == tmp_path / "there" / RUN / "composer-0123abcd-0-1"
        assert same(first, policy)
        assert sorted(path.name for path in first.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
        follower.send_signal(signal.SIGKILL)
    assert follower.returncode == -signal.SIGKILL
    policy.state["head"][1] = 1.0
    with started(tmp_path) as again:
        second = transfer.send(policy, "composer-0123abcd-1-1")
        assert same(second, policy)
        again.terminate()
        said = again.stdout.read()
    assert not list((tmp_path / "scratch").iterdir())
    assert "0 shards whole and 1 patched" in said.splitlines()[-1], said


def test_what_travels_is_what_changed_and_the_newest_two_versions_stay(store, tmp_path):
    transfer, policy = ThroughStore(store, tmp_path / "scratch", run=RUN, timeout_s=60), Policy()
    seen, folder = [], tmp_path / "there" / RUN
    writer = threading.Thread(target=lambda: seen.extend(follow(store, folder.parent, run=RUN, versions=3)))
    writer.start()
    for step in range(3):
        policy.state["head"][1] = step
        assert same(transfer.send(policy, f"composer-0123abcd-{step}-1"), policy)
        transfer.keep_only(f"composer-0123abcd-{step}-1")
    writer.join()
    assert [pulled.version for pulled in seen] == [0, 1, 2]
    assert seen[0].bytes_down > 256 * 256
    assert max(pulled.bytes_down for pulled in seen[1:]) < 500
    assert sorted(path.name for path in folder.glob("composer-*")) == ["composer-0123abcd-1-1", "composer-0123abcd-2-1"]
    assert [folder_of(store, version, "composer-0123abcd-2-1") for version in range(3)] == [
        None,
        None,
        folder / "composer-0123abcd-2-1",
    ]


def test_a_follower_clears_what_a_killed_one_left(store, tmp_path):
    folder = tmp_path / "there" / RUN
    left = folder / ".composer-0123abcd-9-1.partial"
    left.mkdir(parents=True)
    for name in ("mine", "composer-mine", ".composer-cache"):
        (folder / name).mkdir()
    WeightPublisher(store, run=RUN).publish(
        Policy().state, facts={"label": "composer-0123abcd-9-1", "weights": "model.safetensors", "files": {}}
    )
    (pulled,) = follow(store, tmp_path / "there", run=RUN, versions=1)
    assert pulled.version == 0
    kept = [".cache", ".composer-cache", ".lock", "composer-0123abcd-9-1", "composer-mine", "mine"]
    assert sorted(path.name for path in folder.iterdir()) == kept


def test_without_a_follower_the_run_says_what_to_start(store, tmp_path):
    with pytest.raises(ModelError, match="nobody wrote version 0") as raised:
        ThroughStore(store, tmp_path / "scratch", run=RUN, timeout_s=0.1).send(Policy(), "composer-0123abcd-0-1")
    assert "composer weights follow" in raised.value.fix


@pytest.mark.parametrize(
    "wrong",
    [
        {"label": "../outside"},
        {"label": "composer-0123abcd-0-1/../../outside"},
        {"weights": "../model.safetensors"},
        {"files": {"../config.json": "0" * 64}},
        {"files": {"more.safetensors": "0" * 64}},
        {"files": {"config.json": "../manifests/0"}},
        {"files": ["config.json"]},
        {"label": None},
    ],
    ids=json.dumps,
)
def test_a_store_does_not_choose_where_files_are_written(store, tmp_path, wrong):
    facts = {"label": "composer-0123abcd-0-1", "weights": "model.safetensors", "files": {}} | wrong
    WeightPublisher(store, run=RUN).publish(Policy().state, facts=facts)
    with pytest.raises(ConfigError, match="not published for a server"):
        next(follow(store, tmp_path / "there" / "deep", run=RUN))
    assert {path.name for path in tmp_path.iterdir()} == {"store", "there"}
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["deep"]
    assert sorted(path.name for path in (tmp_path / "there" / "deep" / RUN).iterdir()) == [".cache", ".lock"]


def test_a_damaged_file_is_no_configuration(store, tmp_path):
    transfer, sent = ThroughStore(store, tmp_path / "scratch", run=RUN, timeout_s=0), Policy()
    with pytest.raises(ModelError):
        transfer.send(sent, "composer-0123abcd-0-1")
    for key in store.list("files"):
        store.put(key, b"{}")
    with pytest.raises(ObjectStoreError, match="missing or damaged"):
        next(follow(store, tmp_path / "there", run=RUN))
    assert not (tmp_path / "there" / RUN / "composer-0123abcd-0-1").exists()


def test_two_followers_do_not_write_into_one_folder(store, tmp_path):
    publisher, policy = WeightPublisher(store, run=RUN), Policy()
    facts = {"label": "composer-0123abcd-0-1", "weights": "model.safetensors", "files": {}}
    publisher.publish(policy.state, facts=facts)
    first = follow(store, tmp_path / "there", run=RUN)
    next(first)
    with pytest.raises(ConfigError, match="another follower writes into"):
        next(follow(store, tmp_path / "there", run=RUN))
    elsewhere = follow(store, tmp_path / "elsewhere", run=RUN)
    next(elsewhere)
    publisher.publish(policy.state, facts=facts | {"label": "composer-0123abcd-1-1"})
    with pytest.raises(ConfigError, match=r"is followed by .*elsewhere"):
        next(first)
    assert next(elsewhere).version == 1


@pytest.mark.parametrize("said", [b"{}", b"no JSON", b'{"folder": "composer-0123abcd-0-1"}', b'{"folder": "/etc"}'])
def test_an_acknowledgement_that_names_another_folder_is_refused(store, said):
    store.put("written/000000000000", said)
    with pytest.raises(ObjectStoreError, match="does not name a folder"):
        folder_of(store, 0, "composer-0123abcd-0-1")


def test_a_damaged_newest_version_is_waited_out_and_said_once(store, caplog):
    publisher, policy = WeightPublisher(store, run=RUN), Policy()
    publisher.publish(policy.state)
    puller = WeightPuller(store, run=RUN)
    puller.wait_for(0)
    publisher.publish(policy.state)
    store.put(store.list("manifests")[-1], b"torn")
    with pytest.raises(ObjectStoreError, match="version 1 did not come"):
        puller.wait_for(1, timeout_s=0.5)
    (said,) = caplog.messages
    assert "version 1: it does not have the checksum" in said
    publisher.publish(policy.state)
    assert puller.wait_for(2).version == 2


def test_another_runs_weights_are_refused(store, tmp_path):
    WeightPublisher(store, run="another").publish(Policy().state)
    with pytest.raises(ConfigError, match="another"):
        next(follow(store, tmp_path / "there", run=RUN))
