"""Error feedback over deaths and takeovers: what was given has arrived or is owed, once, whoever rounded it for all."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from in_threads import vector
from interleaving import Crew, KilledError
from told_clock import HURRY, ToldClock

from composer_replication.diloco import ObjectStoreAllReduce
from composer_replication.types.errors import RoundError

ROUNDS, SIZE, TAKEOVER_S = 5, 900, 5.0


@dataclass
class Books:
    """What one rank has kept after its last round, as its saved state."""

    means: list = field(default_factory=list)
    state: dict | None = None


def replica(rank, world, codec, books):
    """Holds the rounds that are not in the books; in every life with the same gradients."""

    def work(self):
        options = {"timeout_s": 1e5, "takeover_s": TAKEOVER_S, "poll_s": 20.0, "keep_rounds": None, "codec": codec}
        reduce = ObjectStoreAllReduce(self.store, rank=rank, world_size=world, clock=self, **options)
        if books.state is not None:
            reduce.load_state_dict(books.state)
        for number in range(len(books.means), ROUNDS):
            mean = vector(SIZE, 10 * number + rank)
            reduce.start([mean], "model").wait()
            books.means.append(mean)
            books.state = reduce.state_dict()
        return True

    return work


def hold(seed, world, codec, deaths):
    """All rounds, with replicas that are killed and started again, and clocks that run past the takeover."""
    source = random.Random(seed)
    books = [Books() for _ in range(world)]
    crew = Crew([replica(rank, world, codec, books[rank]) for rank in range(world)])
    ranks = list(range(world))
    while crew.live:
        one = source.choice(crew.live)
        for _ in range(source.choice((1, 5, 40))):  # one goes on alone at times, and takes over
            if one not in crew.live:
                break
            if deaths and source.random() < 0.03:
                deaths -= 1
                crew.step(one, kill=True)
                rank = ranks[one.index]
                ranks.append(rank)
                crew.start(replica(rank, world, codec, books[rank]))
                break
            crew.step(one, seconds=source.choice((None, 2 * TAKEOVER_S)))
    assert all(one.found is True or isinstance(one.found, KilledError) for one in crew.replicas)
    return books, [key for key in crew.written() if "/o/" in key]


@pytest.mark.parametrize("codec", ["int4", "int8"])
@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("seed", range(30))
def test_means_and_what_is_owed_are_what_was_given(codec, world, seed):
    books, chunks = hold(seed, world, codec, deaths=6)
    assert len(chunks) > ROUNDS
    for rank in range(1, world):
        assert all(map(torch.equal, books[rank].means, books[0].means))
    given = sum(vector(SIZE, 10 * number + rank) for number in range(ROUNDS) for rank in range(world)) / world
    owed = sum(one.state["owed"]["model"] for one in books) / world
    torch.testing.assert_close(sum(books[0].means) + owed, given, rtol=0, atol=1e-4)


def test_one_that_only_follows_owes_what_it_rounded_for_the_others(tmp_path):
    """The three that contributed have died before they made the mean, but for the chunk of the last."""
    uri, size = f"memory://{tmp_path.name}", 1024  # four chunks of 256
    common = {"world_size": 4, "codec": "int4", "poll_s": 0.01, "quorum": 3, "deadline_s": 0.01}
    for rank in range(3):
        dying = ObjectStoreAllReduce(uri, rank=rank, timeout_s=1e4, takeover_s=1e12, clock=ToldClock(HURRY), **common)
        with pytest.raises(RoundError):
            dying.allreduce(vector(size, rank), "model")
    late = ObjectStoreAllReduce(uri, rank=3, takeover_s=0.01, **common)
    late.follow([torch.zeros(size)], "model", 0)
    owed = late.state_dict()["owed"]["model"].view(4, 256)
    assert [bool(chunk.any()) for chunk in owed] == [True, True, False, True]
    late.follow([torch.zeros(size)], "model", 0)  # once more changes nothing
    assert torch.equal(late.state_dict()["owed"]["model"].view(4, 256), owed)
