"""No two replicas ever decode different means of a round: whatever the order of their requests, and whoever dies."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from in_threads import vector
from interleaving import Crew, KilledError

from composer_replication.diloco import ObjectStoreAllReduce
from composer_replication.types.errors import RoundError, RoundExpiredError

ROUNDS, SIZE = 4, 600
LONG = (None, 10.0, 100.0)
"""How long a sleep takes: as asked for, past the takeover, past the deadline."""


def replica(world, rank, life=0, **options):
    """What it does: hold the rounds, and give the hash of each mean; a later life has other gradients."""

    def work(self):
        reduce = ObjectStoreAllReduce(
            self.store,
            rank=rank,
            world_size=world,
            timeout_s=1e5,
            takeover_s=5.0,
            poll_s=20.0,
            clock=self,
            keep_rounds=2,
            **options,
        )
        means = {}
        self.means = means
        for number in range(ROUNDS):
            values = vector(SIZE, 1000 * life + 10 * number + rank)
            outcome = reduce.start([values], "model").wait()
            means[outcome.round] = (values, outcome)
        return means

    return work


def run(world, choose, *, deaths=0, damages=0, **options):
    """Every replica that ever lived, after a run in which `choose(n)` picks every next step, as long as it wants to."""
    crew = Crew([replica(world, rank, **options) for rank in range(world)])
    ranks = list(range(world))
    while crew.live:
        live = crew.live
        who, how = choose(len(live), "who"), choose(4)
        if who is None or how is None:  # fair to the end
            for one in live:
                crew.step(one)
            continue
        one = live[who]
        if how == 3 and deaths:
            deaths -= 1
            crew.step(one, kill=True)
            if choose(2) == 1:
                rank = ranks[one.index]
                ranks.append(rank)
                crew.start(replica(world, rank, life=len(ranks), **options))
        elif how == 2 and damages:
            contributions = [key for key in crew.written() if "/p/" in key or "/o/" in key]
            if contributions:
                damages -= 1
                crew.damage(contributions[(choose(64) or 0) % len(contributions)], 30 + (choose(4096) or 0))
        else:
            crew.step(one, seconds=LONG[how % 3])
    return crew.replicas


def agreed(replicas):
    """Who finished; all means of a round that anyone has are the same bits."""
    means = {}
    for one in replicas:
        for number, (mean, outcome) in getattr(one, "means", {}).items():
            first, members = means.setdefault(number, (mean, outcome.members))
            assert torch.equal(mean, first), f"round {number} has two outcomes"
            assert outcome.members == members
    return [one for one in replicas if isinstance(one.found, dict)]


def from_list(choices):
    rest = iter(choices)

    def choose(below, _what=""):
        number = next(rest, None)
        return None if number is None else number % below

    return choose


class FromSeed:
    """Chooses by chance; in every second run one replica goes on for a while before the next does, rounds on end at times."""

    def __init__(self, seed, steps):
        self._source, self._left, self._longest = random.Random(seed), steps, 1 if seed % 2 else 150
        self._who, self._on = 0, 0

    def __call__(self, below, what=""):
        self._left -= 1
        if self._left <= 0:
            return None
        if what != "who":
            return self._source.randrange(below)
        self._on -= 1
        if self._on < 0 or self._who >= below:
            self._who, self._on = self._source.randrange(below), self._source.randrange(self._longest)
        return self._who


SHAPES = [
    pytest.param({"world": 2}, id="flat"),
    pytest.param({"world": 3}, id="owners"),
    pytest.param({"world": 3, "codec": "int4"}, id="owners, int4"),
    pytest.param({"world": 3, "codec": "topk"}, id="flat of three"),
]
QUORUM = {2: 1, 3: 2}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=25)
@given(choices=st.lists(st.integers(0, 2**16), max_size=250))
def test_replicas_agree_whatever_the_order_of_their_requests(shape, choices):
    replicas = run(choose=from_list(choices), **shape)
    assert len(agreed(replicas)) == shape["world"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(40))
def test_survivors_agree_and_finish_whoever_dies_or_is_late(shape, seed):
    quorum = QUORUM[shape["world"]]
    replicas = run(choose=FromSeed(seed, 1000), deaths=shape["world"] - quorum, quorum=quorum, deadline_s=50.0, **shape)
    done = agreed(replicas)
    for one in replicas:
        assert one in done or isinstance(one.found, KilledError | RoundExpiredError), one.found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(30))
def test_damaged_objects_never_make_two_outcomes(shape, seed):
    quorum = QUORUM[shape["world"]]
    replicas = run(choose=FromSeed(seed, 1000), deaths=1, damages=2, quorum=quorum, deadline_s=50.0, **shape)
    done = agreed(replicas)
    for one in replicas:
        assert one in done or isinstance(one.found, KilledError | RoundError), one.found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("requests", range(8, 14))
def test_a_straggler_in_a_round_that_is_being_removed_gets_no_outcome_of_its_own(shape, requests):
    """It stops after some requests; the others go on until the round's first object is gone, and stop there in turn."""
    crew = Crew([replica(rank=rank, quorum=1, deadline_s=50.0, **shape) for rank in range(shape["world"])])
    straggler, others = crew.replicas[-1], itertools.cycle(crew.replicas[:-1])
    for _ in range(requests):
        crew.step(straggler)
    seen, gone = set(), set()
    while not gone:
        one = next(others)
        if one in crew.live:
            crew.step(one, seconds=LONG[2])
        there = {key for key in crew.written() if key.startswith("rounds/model/00000000/")}
        seen |= there
        gone = seen - there
    while straggler in crew.live:
        crew.step(straggler)
    assert isinstance(straggler.found, RoundExpiredError) or 0 in straggler.means
    while crew.live:
        crew.step(crew.live[0])
    agreed(crew.replicas)


def test_an_author_does_not_vouch_for_its_own_object_when_another_can_say():
    """Two replicas: what one has put is damaged in the store, and it is the first to see both contributions."""
    crew = Crew([replica(2, rank) for rank in range(2)])
    author, other = crew.replicas
    key = "rounds/model/00000000/p/{}"
    for one, index in ((author, 0), (other, 1)):
        while key.format(index) not in crew.written():
            crew.step(one)
    crew.damage(key.format(0), 1500)
    for _ in range(40):
        crew.step(author, seconds=1.0)
    assert "rounds/model/00000000/seal" not in crew.written()
    while crew.live:
        for one in crew.live:
            crew.step(one)
    assert agreed(crew.replicas) == crew.replicas
    assert [dict(one.means[0][1].refused) for one in crew.replicas] == [{0: "damaged"}] * 2
    assert [one.means[0][1].counted for one in crew.replicas] == [False, True]
