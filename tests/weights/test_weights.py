"""Weights through a store: the generator has the trainer's bits, whatever happened to the objects in between."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from s3_server import S3Server, environment
from weight_states import assert_same, damage, keys, model, moved

from composer_replication.diloco import open_store
from composer_replication.types.errors import ConfigError, ObjectStoreError
from composer_replication.weights import WeightPublisher, WeightPuller
from composer_replication.weights.manifest import read_manifest

NAMES = (f"memory://weights-{number}" for number in itertools.count())
TYPES = (
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64),
)


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path):
    return open_store(next(NAMES) if request.param == "memory" else tmp_path.as_uri())


@pytest.fixture
def memory():
    return open_store(next(NAMES))


class Flaky:
    """A source whose answer is damaged on the way, the first time an object is read."""

    def __init__(self, store):
        self.store, self.seen = store, set()

    def __getattr__(self, name):
        return getattr(self.store, name)

    def get(self, key):
        data = self.store.get(key)
        if key.startswith("objects") and key not in self.seen:
            self.seen.add(key)
            return data[:-1] + bytes([data[-1] ^ 1])
        return data


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_and_shape_arrives_bit_for_bit(memory, dtype):
    publisher, puller = WeightPublisher(memory, shard_bytes=200), WeightPuller(memory)
    state = model(dtype=dtype)
    for seed in (0, 0, 1):
        state = model(seed, dtype)
        publisher.publish(state)
        found = puller.pull()
        assert_same(found.state, state)
        assert_same(WeightPuller(memory).pull().state, state)
        assert found.state["head"] is found.state["embed"]


def test_what_did_not_change_is_not_sent(store):
    publisher, puller = WeightPublisher(store, shard_bytes=400), WeightPuller(store)
    first = publisher.publish(model())
    assert (first.version, first.patched, first.same, first.bytes_up) == (0, 0, 0, puller.pull().bytes_down)
    again = publisher.publish(model())
    assert (again.full, again.patched, again.bytes_up) == (0, 0, 0)
    assert puller.pull().bytes_down == 0
    third = publisher.publish(moved(model()))
    found = puller.pull()
    assert (third.full, third.patched) == (0, 1)
    assert 0 < third.bytes_up == found.bytes_down < third.bytes_full / 5
    assert (found.full, found.patched, found.version, found.behind) == (0, 1, 2, 0)
    assert found.apply_seconds > 0


def test_a_puller_that_was_away_takes_the_patches_in_order_or_the_whole_copy(memory):
    publisher, away, gone = WeightPublisher(memory, full_every=4, keep=2), WeightPuller(memory), WeightPuller(memory)
    state = model()
    publisher.publish(state)
    gone.pull()
    for version in range(1, 9):
        state = moved(state)
        made = publisher.publish(state)
        assert (made.full, made.patched) == ((version % 5 == 0) * 1, 1)
        if version == 5:
            away.pull()
    found = away.pull()
    assert_same(found.state, state)
    assert (found.full, found.patched) == (0, 1)
    found = gone.pull()
    assert_same(found.state, state)
    assert (found.full, found.patched) == (1, 1)


def test_patches_together_are_never_longer_than_a_whole_copy(memory):
    publisher = WeightPublisher(memory, full_every=1000)
    for seed in range(12):
        publisher.publish(model(dtype=torch.float32) if seed == 0 else moved(model(seed, torch.float32)))
        entries = WeightPuller(memory).manifest(seed).entries
        for entry in entries:
            assert sum(step.object.length for step in entry.steps) <= entry.full.object.length
    assert len(keys(memory, "full")) > 2


def test_a_long_patch_is_not_put_beside_a_whole_copy(memory):
    publisher, puller = WeightPublisher(memory, full_every=1), WeightPuller(memory)
    kinds = []
    for seed in range(4):
        state = {"wide": torch.randn(999, generator=torch.Generator().manual_seed(seed))}
        made = publisher.publish(state)
        kinds.append((made.full, made.patched))
        assert made.bytes_up <= 1.1 * made.bytes_full
        assert_same(puller.pull().state, state)
    assert kinds == [(1, 0), (0, 1), (1, 0), (0, 1)]


def test_a_patch_that_is_longer_than_the_whole_copy_is_not_sent(memory):
    publisher = WeightPublisher(memory)
    for seed in range(3):
        noise = torch.randint(-(2**63), 2**63 - 1, (500,), generator=torch.Generator().manual_seed(seed))
        made = publisher.publish({"noise": noise})
        assert (made.full, made.patched) == (1, 0)
        assert made.bytes_up < 1.05 * made.bytes_full


def test_a_new_publisher_goes_on_with_patches(store):
    WeightPublisher(store).publish(model())
    puller = WeightPuller(store)
    puller.pull()
    made = WeightPublisher(store).publish(moved(model()))
    assert (made.version, made.full, made.patched) == (1, 0, 1)
    assert_same(puller.pull().state, moved(model()))


def test_a_model_that_changes_its_shape_is_sent_whole(memory):
    publisher, puller = WeightPublisher(memory), WeightPuller(memory)
    for state in (model(), model(dtype=torch.float16), {"embed": torch.ones(3)}, {"embed": torch.ones(3, 1)}, {}):
        assert publisher.publish(state).patched == 0
        assert_same(puller.pull().state, state)


def test_a_damaged_answer_is_fetched_again(store):
    WeightPublisher(store, shard_bytes=400).publish(model())
    found = WeightPuller(Flaky(store)).pull()
    assert_same(found.state, model())
    assert found.refetched == found.full > 1
    assert found.problems == ()


@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_a_patch_that_cannot_be_had_is_replaced_by_a_whole_copy_of_the_next_version(store, harm):
    publisher, puller = WeightPublisher(store), WeightPuller(store)
    publisher.publish(model())
    puller.pull()
    publisher.publish(moved(model()))
    (patch,) = keys(store, "patch")
    damage(store, patch) if harm == "damaged" else store.delete(patch)
    found = puller.pull()
    assert (found.version, found.behind) == (0, 1)
    assert "version 1: shard 0" in found.problems[-1]
    assert_same(found.state, model())
    assert WeightPuller(store).pull().version == 0
    made = publisher.publish(moved(model(), 0.5))
    assert made.full == 1
    for one in (puller, WeightPuller(store)):
        found = one.pull()
        assert found.version == 2
        assert_same(found.state, moved(model(), 0.5))
    assert store.list("wants") == []
    assert publisher.publish(moved(model(), 0.6)).full == 0


def test_a_broken_chain_is_bridged_by_a_whole_copy(memory):
    publisher, puller = WeightPublisher(memory, full_every=2), WeightPuller(memory)
    state = model()
    for version in range(4):
        state = state if version == 0 else moved(state)
        publisher.publish(state)
        if version == 1:
            puller.pull()
    third = [key for key in keys(memory, "patch") if "/0000000002/" in key or "/0000000003/" in key]
    assert len(third) == 2
    for key in third:
        damage(memory, key)
    found = puller.pull()
    assert (found.version, found.full) == (3, 1)
    assert_same(found.state, state)
    assert "the whole copy was taken" in found.problems[0]


def test_values_that_were_changed_in_place_are_noticed(memory):
    publisher, puller = WeightPublisher(memory), WeightPuller(memory)
    publisher.publish(model())
    puller.pull().state["norm"].zero_()
    publisher.publish(moved(model()))
    found = puller.pull()
    assert_same(found.state, moved(model()))
    assert (found.full, found.problems != ()) == (1, True)


def test_a_manifest_that_is_damaged_is_passed_over_and_followed_by_whole_copies(memory):
    publisher = WeightPublisher(memory)
    publisher.publish(model())
    publisher.publish(moved(model()))
    damage(memory, "manifests/0000000001")
    found = WeightPuller(memory).pull()
    assert (found.version, found.behind) == (0, 1)
    assert "version 1: it does not have the checksum" in found.problems[0]
    again = WeightPublisher(memory)
    assert (again.version, again.publish(model(2)).full) == (1, 2)
    assert_same(WeightPuller(memory).pull().state, model(2))


def test_a_store_without_a_whole_version_says_so(memory):
    puller = WeightPuller(memory)
    with pytest.raises(ObjectStoreError, match="has no weights yet"):
        puller.pull()
    WeightPublisher(memory).publish(model())
    for key in keys(memory, "full"):
        damage(memory, key)
    with pytest.raises(ObjectStoreError, match=r"no complete version: version 0: shard 0: .* checksum"):
        puller.pull()


def test_a_version_is_waited_for(memory):
    publisher, puller = WeightPublisher(memory), WeightPuller(memory)
    with pytest.raises(ObjectStoreError, match=r"version 3 did not come .* the newest is none"):
        puller.wait_for(3, timeout_s=0.0)
    publisher.publish(model(), version=3, facts={"step": 30})
    found = puller.wait_for(2)
    assert (found.version, found.facts) == (3, {"step": 30})
    with pytest.raises(ObjectStoreError, match=r"version 4 .* the newest is 3"):
        puller.wait_for(4, timeout_s=0.0)


def test_a_version_that_comes_later_ends_the_waiting(memory):
    publisher, puller, found = WeightPublisher(memory), WeightPuller(memory), []
    waiting = threading.Thread(target=lambda: found.append(puller.wait_for(2)))
    waiting.start()
    for version in range(3):
        publisher.publish(model(version))
    waiting.join()
    assert found[0].version == 2
    assert_same(found[0].state, model(2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda store: WeightPublisher(store, keep=0), "keep is 0"),
        (lambda store: WeightPuller(store, threads=0), "threads is 0"),
        (lambda store: WeightPublisher(store, run="other"), "run 'one', and this is 'other'"),
        (lambda store: WeightPuller(store, run="other").pull(), "run 'one', and 'other' was asked for"),
        (lambda store: WeightPublisher(store, run="one").publish({}, version=0), "version 0 is not newer than 0"),
        (
            lambda store: WeightPublisher(store, run="one").publish({"a": 3}),
            "'a' of the state dict is not a dense tensor but int",
        ),
        (lambda store: WeightPublisher(store, run="one").publish({"a": torch.ones(2, device="meta")}), "a tensor on meta"),
        (lambda store: WeightPublisher(store, run="one").publish({"a": torch.ones(2).cdouble()}), "of the type complex128"),
        (lambda store: WeightPublisher(store, run="one").publish({}, facts={"a": object()}), "version 1 are not JSON"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(memory, call, words):
    WeightPublisher(memory, run="one").publish({})
    with pytest.raises(ConfigError, match=words):
        call(memory)


def test_two_publishers_cannot_publish_the_same_version(memory):
    one, other = WeightPublisher(memory), WeightPublisher(memory)
    one.publish(model())
    with pytest.raises(ObjectStoreError, match="manifests/0000000000 is another publisher's"):
        other.publish(model(1))
    assert_same(WeightPuller(memory).pull().state, model())


def test_a_folder_keeps_what_a_new_process_would_fetch_again(memory, tmp_path):
    publisher = WeightPublisher(memory, shard_bytes=400)
    publisher.publish(model())
    assert WeightPuller(memory, cache=tmp_path).pull().bytes_down > 0
    assert WeightPuller(memory, cache=tmp_path).pull().bytes_down == 0
    made = publisher.publish(moved(model()))
    (tmp_path / f"{'0' * 64}.1.part").touch()
    found = WeightPuller(memory, cache=tmp_path).pull()
    assert found.bytes_down == made.bytes_up
    assert_same(found.state, moved(model()))
    entries = WeightPuller(memory).manifest(1).entries
    assert {path.name for path in tmp_path.iterdir()} == {entry.content for entry in entries}
    for harm in (lambda data: bytes(len(data)), lambda data: data[:-1]):
        for path in tmp_path.iterdir():
            path.write_bytes(harm(path.read_bytes()) or b"")
        found = WeightPuller(memory, cache=tmp_path).pull()
        assert found.full > 1
        assert found.problems == ()
        assert_same(found.state, moved(model()))
        assert WeightPuller(memory, cache=tmp_path).pull().bytes_down == 0


STEPS = st.lists(
    st.sampled_from(["few", "many", "type", "pull", "new puller", "new publisher", "damage", "remove"]), min_size=3, max_size=14
)


@pytest.mark.slow
@given(steps=STEPS, full_every=st.integers(1, 4), keep=st.integers(1, 3), choice=st.randoms(use_true_random=False))
def test_whatever_happens_a_version_is_what_was_published_and_what_it_needs_stays(steps, full_every, keep, choice):
    store = open_store(next(NAMES))
    setting = {"full_every": full_every, "keep": keep, "shard_bytes": 500, "threads": 1}
    publisher, puller = WeightPublisher(store, **setting), WeightPuller(store, threads=1)
    dtype, state, published, harmed = torch.bfloat16, model(), {}, False
    for step in ["few", *steps, "pull"]:
        if step in ("few", "many", "type"):
            dtype = choice.choice((torch.bfloat16, torch.float16, torch.float32)) if step == "type" else dtype
            state = moved(state) if step == "few" else model(choice.randrange(99), dtype)
            made = publisher.publish(state)
            published[made.version] = state
            there = sorted(int(key.rpartition("/")[2]) for key in store.list("manifests"))
            assert there == sorted(published)[-keep:]
            manifests = [read_manifest(store.get(f"manifests/{version:010d}"), version) for version in there]
            needed = {part.key for manifest in manifests for entry in manifest.entries for part in entry.objects()}
            assert harmed or set(store.list("objects")) == needed
        elif step == "new publisher":
            publisher = WeightPublisher(store, **setting)
        elif step in ("damage", "remove"):
            harmed = True
            for key in store.list("objects")[choice.randrange(4) :: 4]:
                damage(store, key) if step == "damage" else store.delete(key)
        else:
            puller = WeightPuller(store, threads=1) if step == "new puller" else puller
            try:
                found = puller.pull()
            except ObjectStoreError:
                assert harmed
                continue
            assert harmed or found.behind == 0
            assert_same(found.state, published[found.version])


def test_a_manifest_is_a_line_of_its_checksum_and_json(memory):
    WeightPublisher(memory, run="one").publish(model(), facts={"step": 1})
    head, _, text = memory.get("manifests/0000000000").partition(b"\n")
    assert head.startswith(b"composer weights 1 ")
    assert json.loads(text)["facts"] == {"step": 1}


def test_a_bucket_holds_weights_as_well(monkeypatch):
    with S3Server() as server:
        for name, value in environment(server.url).items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://bucket/weights")
        publisher, puller = WeightPublisher(store, shard_bytes=400, full_every=2, keep=2), WeightPuller(store)
        state = model()
        for _ in range(5):
            publisher.publish(state)
            assert_same(puller.pull().state, state)
            state = moved(state)
        assert puller.held.patched == 1
        assert [key.rpartition("/")[2] for key in store.list("manifests")] == [f"{version:010d}" for version in (3, 4)]
        assert_same(WeightPuller(open_store("s3://bucket/weights")).pull().state, puller.held.state)


def test_nothing_is_pickled():
    folder = Path(__file__).parents[2] / "composer_replication" / "weights"
    assert [path.name for path in folder.glob("*.py") if "pickle" in path.read_text() or "torch.load" in path.read_text()] == []
