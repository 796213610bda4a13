"""What a round reads of several replicas it reads at once, and believes only what it has read after the seal."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
from in_threads import together, vector

from composer_replication.diloco import ObjectStoreAllReduce, Store, open_store
from composer_replication.diloco.codecs import make_codec
from composer_replication.diloco.setting import Setting, Stopwatch

WORLD = 4


class Watched(Store):
    """Counts reads one by one and together; of contributions nothing can be read before `until_sealed`, if that is set."""

    def __init__(self, uri, until_sealed=False):
        self.__dict__.update(open_store(uri).__dict__)
        self.singly, self.together, self.until_sealed = [], [], until_sealed

    def _hidden(self, key):
        return self.until_sealed and key.startswith("p/") and "seal" not in self.list()

    def get_range(self, key, start, length):
        self.singly.append(key)
        return None if self._hidden(key) else super().get_range(key, start, length)

    def get_many(self, asked):
        self.together.append([key for key, _, _ in asked])
        return [None if self._hidden(asked[0][0]) else found for found in super().get_many(asked)]


def held(stores):
    members = [ObjectStoreAllReduce(store, rank=rank, world_size=WORLD, timeout_s=600) for rank, store in enumerate(stores)]
    values = [vector(1000, rank) for rank in range(WORLD)]
    rounds = [partial(lambda one, own: one.start([own], "model").wait(), *each) for each in zip(members, values, strict=True)]
    outcomes = together(*rounds)
    assert all(torch.equal(one, values[0]) for one in values)
    assert torch.allclose(values[0], sum(vector(1000, rank) for rank in range(WORLD)) / WORLD, atol=1e-6)
    return outcomes


def test_headers_chunks_and_means_of_several_replicas_are_read_at_once(tmp_path):
    stores = [Watched(f"memory://{tmp_path.name}") for _ in range(WORLD)]
    held(stores)
    for rank, store in enumerate(stores):
        others = {f"p/{other}" for other in range(WORLD) if other != rank}
        assert not store.singly
        assert others in [set(keys) for keys in store.together]
        assert {key for keys in store.together for key in keys} == others | {f"o/{part}" for part in range(WORLD) if part != rank}


def test_a_contribution_that_can_be_read_only_after_the_seal_counts(tmp_path):
    stores = [Watched(f"memory://{tmp_path.name}", until_sealed=True) for _ in range(WORLD)]
    for outcome in held(stores):
        assert outcome.refused == {}
        assert outcome.counted


@dataclass
class ByHand:
    """Goes on when it sleeps, and when a test says so."""

    time: float = 0.0
    slept: list[float] = field(default_factory=list)

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds


@pytest.mark.parametrize(("look_s", "slept"), [(0.0, [0.005, 0.0075, 0.01125]), (0.1, [0.1, 0.15, 0.225]), (9.0, [0.5] * 3)])
def test_a_slow_store_is_asked_less_often_but_no_less_than_poll_s(look_s, slept):
    clock = ByHand()
    setting = Setting("run", 0, WORLD, make_codec("fp32"), 600.0, WORLD, 600.0, 30.0, 0.5, None, clock)
    looks = iter([None, None, None, "found"])

    def look():
        clock.time += look_s
        return next(looks)

    assert Stopwatch(setting).until(look, lambda: "nothing") == "found"
    assert clock.slept == pytest.approx(slept)
