"""A folder of weights, and a cache, in which others have put something: it is passed over and stays, or told in one line."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from weight_states import assert_same, model, moved

from composer_replication.diloco import open_store
from composer_replication.types.errors import ConfigError
from composer_replication.weights import WeightPublisher, WeightPuller
from composer_replication.weights.manifest import versions

STRAYS = (
    *("manifests/.DS_Store", "manifests/²", "manifests/7", "manifests/0000000009/x", "wants/.DS_Store"),
    *("objects/.DS_Store", "objects/0000000000/notes", "objects/x/y/z"),
)
HEX = "0" * 64


@pytest.fixture
def store(tmp_path):
    return open_store(f"memory://{tmp_path.name}")


def forge(store, change):
    """Version 1: what the publisher said of version 0, but for what `change` does to it; with the checksum that it needs."""
    facts = json.loads(store.get("manifests/0000000000").partition(b"\n")[2])
    facts["version"] = 1
    found = change(facts)
    text = found if isinstance(found, bytes) else json.dumps(facts).encode()
    store.put("manifests/0000000001", f"composer weights 1 {hashlib.sha256(text).hexdigest()}\n".encode() + text)


def entry(**facts):
    return lambda manifest: manifest["entries"][0].update(facts)


def at(*path, value):
    def change(manifest):
        place = manifest["entries"][0]
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value

    return change


def step(base):
    """A patch of which the base is a path; the puller looks into its folder for it."""
    return lambda manifest: manifest["entries"][0].update(
        steps=[{"base": base, "content": manifest["entries"][0]["content"], "object": manifest["entries"][0]["full"]["object"]}]
    )


@pytest.mark.parametrize("which", ["base", "content"])
@pytest.mark.parametrize("where", ["{folder}/precious", "../precious"])
def test_a_manifest_names_no_file_outside_of_the_cache(store, tmp_path, which, where):
    WeightPublisher(store).publish(model())
    precious = tmp_path / "precious"
    precious.write_bytes(b"thesis")
    path = where.format(folder=tmp_path)
    forge(store, step(path) if which == "base" else entry(content=path))
    found = WeightPuller(store, cache=tmp_path / "cache").pull()
    assert precious.read_bytes() == b"thesis"
    assert (found.version, found.behind) == (0, 1)
    assert "content cannot be: string should match" in found.problems[0] or "base cannot be: string" in found.problems[0]
    assert_same(found.state, model())
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: b"{",
        lambda manifest: b"[]",
        lambda manifest: b"[" * 100_000,
        lambda manifest: manifest.pop("run") and None,
        lambda manifest: manifest.update(version="1"),
        lambda manifest: manifest.update(facts=[]),
        lambda manifest: manifest.update(entries={}),
        lambda manifest: manifest.update(tied=[["y", "nosuch"]]),
        lambda manifest: manifest.update(tied=["ab"]),
        entry(content=5),
        entry(content=HEX[1:]),
        entry(content=HEX[1:] + "G"),
        entry(content=f"{HEX}\n"),
        entry(steps=[{}]),
        at("shard", "dtype", value=["float32"]),
        at("shard", "dtype", value="quint8"),
        at("shard", "tensors", value=[["x", [-5]]]),
        at("shard", "tensors", value=[["x", [2**70]]]),
        at("shard", "tensors", value=[["x", [2**50]]]),
        at("shard", "tensors", value=[["x", ["3"]]]),
        at("full", "content", value="../x"),
        at("full", "object", "sha256", value=7),
        at("full", "object", "length", value="7"),
        at("full", "object", "length", value=-7),
    ],
)
def test_a_manifest_that_cannot_be_is_passed_over(store, tmp_path, change):
    WeightPublisher(store).publish(model())
    forge(store, change)
    found = WeightPuller(store, cache=tmp_path).pull()
    assert (found.version, found.behind) == (0, 1)
    assert found.problems[0].startswith("version 1: ")
    assert_same(found.state, model())
    assert WeightPublisher(store).publish(model(2)).version == 2
    assert_same(WeightPuller(store).pull().state, model(2))


@pytest.mark.parametrize(
    "change",
    [
        at("full", "object", "sha256", value=HEX),
        at("full", "object", "key", value="../../etc/passwd"),
        at("full", "object", "key", value=f"objects/0000000000/00000-other-{HEX}"),
        at("full", "object", "key", value=f"../objects/0000000000/00000-full-{HEX}"),
        at("full", "object", "key", value=f"objects/0000000000/00000-full-{HEX}/x"),
    ],
)
def test_a_manifest_names_only_objects_of_a_publisher(tmp_path, change):
    store = open_store(tmp_path)  # a folder refuses some of these names by itself, with an error that would end the pull
    WeightPublisher(store).publish(model())
    forge(store, change)
    found = WeightPuller(store).pull()
    assert (found.version, found.behind) == (0, 1)
    assert "is not an object of a publisher with the checksum" in found.problems[0]


def test_keys_that_are_not_ours_are_passed_over(store):
    WeightPublisher(store).publish(model())
    forge(store, lambda manifest: manifest.update(later=[1]) or entry(later=2)(manifest))
    found = WeightPuller(store).pull()
    assert (found.version, found.problems) == (1, ())
    assert_same(found.state, model())


@pytest.mark.parametrize("key", STRAYS)
def test_objects_that_are_not_ours_change_nothing_and_stay(store, key):
    store.put(key, b"junk")
    publisher, puller = WeightPublisher(store, keep=1), WeightPuller(store)
    state = model()
    for number in range(3):
        publisher.publish(state)
        found = puller.pull()
        assert (found.version, found.behind) == (number, 0)
        assert_same(found.state, state)
        state = moved(state)
    assert store.exists(key)
    assert versions(store) == [2]
    assert WeightPublisher(store).version == 2


def test_a_cache_leaves_the_files_of_others_alone(store, tmp_path):
    publisher = WeightPublisher(store)
    others = ["thesis.tex", ".gitignore", HEX[1:], f"{HEX}.tex", f"{HEX}.part", f"{HEX.replace('0', 'g')}", "torn.1.part"]
    for name in others:
        (tmp_path / name).write_text("precious")
    for name in (HEX, f"{HEX}.17.part"):
        (tmp_path / name).write_text("old")
    for state in (model(), moved(model())):
        publisher.publish(state)
        found = WeightPuller(store, cache=tmp_path).pull()
        assert_same(found.state, state)
    contents = {one.content for one in WeightPuller(store).manifest(1).entries}
    assert {path.name for path in tmp_path.iterdir()} == {*others, *contents}
    assert {(tmp_path / name).read_text() for name in others} == {"precious"}


def test_a_version_of_more_digits_is_still_a_version(store):
    publisher = WeightPublisher(store)
    publisher.publish(model(), version=1_700_000_000_000)
    publisher.publish(moved(model()))
    assert_same(WeightPuller(store).pull().state, moved(model()))
    assert versions(store) == [1_700_000_000_000, 1_700_000_000_001]


def test_a_text_that_is_no_unicode_is_refused_where_it_comes_from(store):
    with pytest.raises(ConfigError, match="the facts of version 0 are not JSON"):
        WeightPublisher(store).publish({"a": torch.ones(1)}, facts={"text": "\ud800"})
    WeightPublisher(store).publish({"ü": torch.ones(1)}, facts={"text": "ü"})
    found = WeightPuller(store).pull()
    assert (list(found.state), found.facts) == (["ü"], {"text": "ü"})
