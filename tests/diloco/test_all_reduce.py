"""The mean over replicas of one store: the same bits everywhere, at the traffic that the protocol promises."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from in_threads import together, vector

from composer_replication.diloco import ObjectStoreAllReduce
from composer_replication.types.errors import ConfigError


def hold(uri, world, values, rounds=1, **options):
    """By rank, the outcomes of every round and the means."""

    def replica(rank):
        reduce = ObjectStoreAllReduce(uri, rank=rank, world_size=world, timeout_s=600, **options)
        found = []
        for number in range(rounds):
            mean = values(rank, number).clone()
            found.append((reduce.start([mean], "model").wait(), mean))
        return found

    return together(*(partial(replica, rank) for rank in range(world)))


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("scheme", ["memory", "folder"])
def test_replicas_get_the_exact_mean_and_the_same_bits(world, scheme, tmp_path):
    uri = str(tmp_path) if scheme == "folder" else f"memory://{tmp_path.name}-{world}"
    found = hold(uri, world, lambda rank, number: vector(5000, 10 * number + rank), rounds=2)
    for number in range(2):
        means = [replica[number][1] for replica in found]
        assert all(torch.equal(mean, means[0]) for mean in means)
        expected = torch.stack([vector(5000, 10 * number + rank) for rank in range(world)]).mean(0)
        torch.testing.assert_close(means[0], expected)
    assert found[0][0][0].members == tuple(range(world))
    assert all(outcome.counted and outcome.residual == 0 for replica in found for outcome, _ in replica)


@pytest.mark.parametrize(("codec", "error"), [("bf16", 0.004), ("int8", 0.015), ("int4", 0.26)])
@pytest.mark.parametrize("world", [2, 4])
def test_every_codec_is_close_and_agreed_on(codec, error, world, tmp_path):
    found = hold(tmp_path, world, lambda rank, _: vector(20_000, rank, 1e-6), codec=codec)
    means = [replica[0][1] for replica in found]
    assert all(torch.equal(mean, means[0]) for mean in means)
    expected = torch.stack([vector(20_000, rank, 1e-6) for rank in range(world)]).mean(0)
    assert (means[0] - expected).norm() < error * expected.norm()


@pytest.mark.parametrize("world", [3, 4, 8])
def test_traffic_is_that_of_the_protocol(world, tmp_path):
    size = 400_000
    found = hold(tmp_path, world, lambda rank, _: vector(size, rank))
    up = sum(replica[0][0].bytes_up for replica in found) / world
    down = sum(replica[0][0].bytes_down for replica in found) / world
    assert up <= 1.05 * (1 + 1 / world) * 4 * size
    assert down <= 1.05 * (2 * (world - 1) / world) * 4 * size


def test_one_replica_needs_no_store():
    values = vector(10, 0)
    assert ObjectStoreAllReduce("memory://alone", rank=0, world_size=1).allreduce(values, "model") is values
    assert torch.equal(values, vector(10, 0))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": 2}, "rank 2 in a world of 2"),
        ({"rank": -1}, "rank -1 in a world of 2"),
        ({"world_size": 0}, "a world of 0 replicas"),
        ({"timeout_s": -5.0}, "timeout_s = -5.0"),
        ({"takeover_s": float("nan")}, "takeover_s = nan"),
        ({"quorum": 1, "deadline_s": 0.0}, "deadline_s = 0.0"),
        ({"norm_gate": 0.0}, "norm_gate = 0.0"),
        ({"quorum": 3, "deadline_s": 1}, "a quorum of 3 in a world of 2"),
        ({"quorum": 1}, "a quorum needs a deadline"),
        ({"deadline_s": 1.0}, "a quorum needs a deadline"),
        ({"codec": "int9"}, "no codec is called 'int9'"),
        ({"keep_rounds": 1}, "keep_rounds = 1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        ObjectStoreAllReduce("memory://arguments", **{"rank": 0, "world_size": 2, **options})


def test_tensors_of_any_shape_and_type_go_as_one_vector_and_come_back_as_they_were(tmp_path):
    def replica(rank):
        tensors = [torch.full((2, 3), rank, dtype=torch.bfloat16), torch.tensor(float(rank)), torch.full((4,), 2.0 * rank)]
        ObjectStoreAllReduce(tmp_path, rank=rank, world_size=2).start(tensors, "parts").wait()
        return tensors

    for tensors in together(partial(replica, 0), partial(replica, 1)):
        assert [tensor.tolist() for tensor in tensors] == [[[0.5] * 3] * 2, 0.5, [1.0] * 4]
        assert tensors[0].dtype == torch.bfloat16


def test_nothing_of_a_round_runs_on_after_its_end(tmp_path):
    """A thread that is still ending when the interpreter ends aborts the process."""

    def replica(rank):
        pending = ObjectStoreAllReduce(tmp_path, rank=rank, world_size=2, timeout_s=600).start([vector(10, rank)], "model")
        pending.wait()
        return pending

    pending = together(*(partial(replica, rank) for rank in range(2)))
    assert all(one.done() for one in pending)
    assert not [thread.name for thread in threading.enumerate() if thread.name == "composer-round"]
