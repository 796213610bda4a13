"""Trainers and generators that are killed with SIGKILL at every request: no half of a version is ever seen, and all goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from killed_weights import SETTING, weights
from weight_states import assert_same

from composer_replication.diloco import open_store
from composer_replication.weights import WeightPublisher, WeightPuller
from composer_replication.weights.manifest import read_manifest

TOOL = Path(__file__).parents[1] / "tools" / "killed_weights.py"
BEFORE = 4
"""Versions that are there when someone is killed: with `keep` 2, old ones are removed."""


def killed(deed, tmp_path, places):
    """Folders in which a process was killed at each of its requests; in the last one it came to its end."""
    publisher = WeightPublisher(open_store(tmp_path / "first" / "store"), **SETTING)
    for version in range(BEFORE):
        publisher.publish(weights(version))
    folders = [tmp_path / str(place) for place in range(places)]
    for folder in folders:
        shutil.copytree(tmp_path / "first", folder)
    run = subprocess.run([sys.executable, TOOL, deed, *folders], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    died = json.loads(run.stdout)
    count = died.index(False)
    assert died == [True] * count + [False] * (places - count)
    return folders[: count + 1]


@pytest.mark.slow
def test_a_publisher_that_is_killed_leaves_the_old_version_or_the_new_one(tmp_path):
    seen = set()
    folders = killed("publish", tmp_path, 48)
    assert len(folders) > 12  # puts, the manifest, and what is removed, each before and after
    for folder in folders:
        store = open_store(folder / "store")
        found = WeightPuller(store).pull()
        seen.add(found.version)
        assert_same(found.state, weights(found.version))
        again = WeightPublisher(store, **SETTING)
        assert again.version == found.version
        for version in (found.version + 1, found.version + 2):
            again.publish(weights(version))
            assert_same(WeightPuller(store).pull().state, weights(version))
        there = sorted(int(key.rpartition("/")[2]) for key in store.list("manifests"))
        assert there == [found.version + 1, found.version + 2]
        manifests = [read_manifest(store.get(f"manifests/{version:010d}"), version) for version in there]
        needed = {part.key for manifest in manifests for entry in manifest.entries for part in entry.objects()}
        assert set(store.list("objects")) == needed
    assert seen == {BEFORE - 1, BEFORE}


@pytest.mark.slow
def test_a_puller_that_is_killed_goes_on_with_what_it_has(tmp_path):
    folders = killed("pull", tmp_path, 32)
    whole = WeightPuller(open_store(folders[0] / "store")).pull().bytes_down
    left = []
    for folder in folders:
        found = WeightPuller(open_store(folder / "store"), cache=folder / "cache").pull()
        left.append(found.bytes_down)
        assert_same(found.state, weights(BEFORE - 1))
        assert not list((folder / "cache").glob("*.part"))
    assert left == sorted(left, reverse=True)
    assert (left[0], left[-1]) == (whole, 0)
    assert len(set(left)) > 2
