"""Rounds that go wrong: who is late, dies, sends nonsense or comes back, and what the store holds afterwards."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial

import pytest
import torch
from in_threads import together, vector
from told_clock import HURRY, LONG_S, ToldClock

from composer_replication.diloco import ObjectStoreAllReduce, open_store
from composer_replication.types.errors import ConfigError, ObjectStoreError, RoundError, RoundExpiredError

SIZE = 3000
QUORUM = {"quorum": 2, "deadline_s": LONG_S, "poll_s": 0.02, "timeout_s": 1e9}


@pytest.fixture
def uri(tmp_path):
    return f"memory://{tmp_path.name}"


def member(uri, rank, world=3, **options):
    return ObjectStoreAllReduce(uri, rank=rank, world_size=world, **{"timeout_s": LONG_S, **options})


def hold(reduce, values, **options):
    mean = values.clone()
    return reduce.start([mean], "model", **options).wait(), mean


def all_hold(members, values, **options):
    return together(*(partial(hold, one, value, **options) for one, value in zip(members, values, strict=True)))


def test_a_round_is_held_without_who_is_missing_and_the_late_one_carries_its_gradient(uri):
    clocks = [ToldClock(HURRY) for _ in range(2)]
    early, late = [member(uri, rank, clock=clocks[rank], **QUORUM) for rank in (0, 1)], member(uri, 2, **QUORUM)
    given = [vector(SIZE, rank) for rank in range(3)]
    (first, mean), (_, other) = all_hold(early, given[:2])
    for clock in clocks:
        clock.run(1.0)
    assert first.members == (0, 1)
    torch.testing.assert_close(mean, (given[0] + given[1]) / 2)
    outcome, same = hold(late, given[2])
    assert torch.equal(same, mean)
    assert torch.equal(other, mean)
    assert not outcome.counted
    assert outcome.residual == pytest.approx(float(given[2].norm()), rel=1e-5)
    found = all_hold([*early, late], [torch.zeros(SIZE)] * 3)
    for outcome, mean in found:
        torch.testing.assert_close(mean, given[2] / 3)
        assert outcome.members == (0, 1, 2)
        assert outcome.residual == 0


def test_who_was_not_heard_of_last_time_is_not_waited_for_again(uri):
    clocks = [ToldClock(HURRY) for _ in range(2)]
    members = [member(uri, rank, clock=clocks[rank], **QUORUM) for rank in (0, 1)]
    first = all_hold(members, [vector(SIZE, 0)] * 2)
    for clock in clocks:
        clock.run(1.0)
    second = all_hold(members, [vector(SIZE, 0)] * 2)
    assert max(outcome.seconds for outcome, _ in first) >= LONG_S > max(outcome.seconds for outcome, _ in second)


def test_too_few_replicas_are_an_error_that_names_who_is_missing_and_the_round_can_be_held_later(uri):
    members = [member(uri, rank, timeout_s=0.3) for rank in range(3)]
    given = [vector(SIZE, rank) for rank in range(3)]
    values = given[0].clone()
    with pytest.raises(RoundError, match=r"after 0\.3 s rank 0 still waits for rank 1, 2 in round 0 of 'model'"):
        members[0].start([values], "model").wait()
    assert torch.equal(values, given[0])
    members = [members[0], *(member(uri, rank) for rank in (1, 2))]
    found = all_hold(members, given)
    assert [outcome.round for outcome, _ in found] == [0, 0, 0]
    torch.testing.assert_close(found[0][1], sum(given) / 3)


def test_a_replica_that_comes_back_in_the_middle_of_a_round_does_not_count_twice(uri):
    given = [vector(SIZE, rank) for rank in range(3)]
    with pytest.raises(RoundError):
        hold(member(uri, 0, timeout_s=0.1), given[0])
    again = member(uri, 0)
    found = all_hold([again, member(uri, 1), member(uri, 2)], [given[0] + 1, given[1], given[2]])
    torch.testing.assert_close(found[0][1], sum(given) / 3)
    assert again.residual_norm("model") == pytest.approx(SIZE**0.5)  # what it would have sent now, less what it had


def test_the_chunk_of_an_owner_that_died_is_made_by_others(uri):
    given = [vector(SIZE, rank) for rank in range(3)]
    with pytest.raises(RoundError):
        hold(member(uri, 1, timeout_s=0.05), given[1])
    found = all_hold([member(uri, rank, takeover_s=0.2, poll_s=0.02) for rank in (0, 2)], [given[0], given[2]])
    assert found[0][0].members == (0, 1, 2)
    assert torch.equal(found[0][1], found[1][1])
    torch.testing.assert_close(found[0][1], sum(given) / 3)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("at", [10, 5000], ids=["header", "payload"])
def test_a_damaged_contribution_does_not_count_and_is_carried(uri, world, at):
    given = [vector(SIZE, rank) for rank in range(world)]
    with pytest.raises(RoundError):
        hold(member(uri, 0, world, timeout_s=0.05), given[0])
    key, store = "rounds/model/00000000/p/0", open_store(uri)
    data = bytearray(store.get(key))
    data[at] ^= 1
    store.put(key, bytes(data))
    found = all_hold([member(uri, rank, world) for rank in range(world)], given)
    assert all(torch.equal(mean, found[0][1]) for _, mean in found)
    assert all(outcome.refused == {0: "damaged"} for outcome, _ in found if outcome.refused)
    assert any(outcome.refused for outcome, _ in found)


@pytest.mark.parametrize("deed", ["damage", "remove"])
def test_a_damaged_chunk_of_the_mean_is_made_again_or_refused(uri, deed):
    given = [vector(SIZE, rank) for rank in range(3)]
    found = all_hold([member(uri, rank) for rank in range(3)], given)
    key, store = "rounds/model/00000000/o/1", open_store(uri)
    data = bytearray(store.get(key))
    data[-1] ^= 1
    store.delete(key)
    if deed == "damage":
        store.put(key, bytes(data))
    late, mean = member(uri, 2, takeover_s=0.05), torch.zeros(SIZE)
    late.follow([mean], "model", 0)
    assert torch.equal(mean, found[0][1])
    data[30] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(RoundError, match=r"rounds/model/00000000/o/1 is damaged: its header"):
        late.follow([mean], "model", 0)


def test_a_damaged_seal_is_an_error_for_everyone(uri):
    all_hold([member(uri, rank) for rank in range(3)], [vector(SIZE, 0)] * 3)
    open_store(uri).put("rounds/model/00000000/seal", b"nonsense")
    with pytest.raises(RoundError, match="rounds/model/00000000/seal is damaged: it does not start as one of ours does"):
        member(uri, 0).follow([torch.zeros(SIZE)], "model", 0)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_sent(uri, world, bad):
    given = [vector(SIZE, rank) for rank in range(world)]
    given[0][7] = bad
    members = [member(uri, rank, world) for rank in range(world)]
    for outcome, mean in all_hold(members, given):
        assert outcome.refused == {0: "nothing"}
        torch.testing.assert_close(mean, sum(given[1:]) / (world - 1))
    assert members[0].residual_norm("model") == 0


@pytest.mark.parametrize("codec", ["fp32", "topk"])
def test_a_contribution_beyond_the_gate_is_refused_and_forgotten(uri, codec):
    members = [member(uri, rank, norm_gate=5.0, codec=codec) for rank in range(3)]
    given = [vector(SIZE, 0), 1e6 * vector(SIZE, 1), vector(SIZE, 2)]
    found = all_hold(members, given)
    assert all(outcome.refused == {1: "norm"} and float(mean.norm()) < 1e3 for outcome, mean in found)
    assert members[1].residual_norm("model") == 0
    if codec == "fp32":
        torch.testing.assert_close(found[0][1], (given[0] + given[2]) / 2)


def test_weights_weigh(uri):
    members = [member(uri, rank) for rank in range(3)]
    given = [vector(SIZE, rank) for rank in range(3)]
    found = together(*(partial(hold, members[rank], given[rank], weight=rank + 1.0) for rank in range(3)))
    torch.testing.assert_close(found[0][1], (given[0] + 2 * given[1] + 3 * given[2]) / 6)
    with pytest.raises(ConfigError, match="weight"):
        members[0].start([given[0]], "model", weight=0.0)


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4", "auto"])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_over_many_rounds_nothing_is_lost_in_either_quantisation(uri, codec, world):
    """The sum of the means and what is owed is the sum of what was given: both roundings are carried."""
    members = [member(uri, rank, world, codec=codec) for rank in range(world)]
    given, arrived, first = torch.zeros(SIZE), torch.zeros(SIZE), None
    for number in range(12):
        values = [vector(SIZE, 100 * number + rank, 1e-5) for rank in range(world)]
        found = all_hold(members, values)
        given += sum(values) / world
        arrived += found[0][1]
        first = first or [outcome.residual for outcome, _ in found]
    assert all(outcome.residual < 2 * start for (outcome, _), start in zip(found, first, strict=True))
    owed = sum(one.state_dict()["owed"].get("model", torch.zeros(SIZE)) for one in members) / world
    torch.testing.assert_close(arrived + owed, given, rtol=1e-3, atol=1e-9)
    assert float(owed.norm()) > 0


def test_replicas_with_other_models_are_told_apart(uri):
    members = [member(uri, rank, 2) for rank in range(2)]
    first, second = all_hold(members, [vector(10, 0), vector(12, 0)])
    said = [str(found) for found in (first, second) if isinstance(found, ConfigError)]
    assert said or any(isinstance(found, tuple) and found[0].refused for found in (first, second))


def test_a_folder_of_another_run_is_refused(uri):
    member(uri, 0, fingerprint="a")
    with pytest.raises(ConfigError, match=r"fingerprint is 'a' there and 'b' here; codec is 'fp32' there and 'int8' here"):
        member(uri, 1, fingerprint="b", codec="int8")
    with pytest.raises(ConfigError, match="world_size is 3 there and 2 here"):
        member(uri, 1, 2, fingerprint="a")


def test_old_rounds_are_removed_and_who_needs_one_is_told(uri):
    members = [member(uri, rank, keep_rounds=2) for rank in range(3)]
    for _ in range(4):
        all_hold(members, [vector(SIZE, 0)] * 3)
    store = open_store(uri)
    assert {key.split("/")[2] for key in store.list("rounds")} == {"00000002", "00000003"}
    assert store.list("floors") == ["floors/model/00000002"]
    straggler = member(uri, 1, takeover_s=0.05, quorum=1, deadline_s=0.1)
    with pytest.raises(RoundExpiredError, match="round 1 of 'model' has been removed: the others are at round 2 or later"):
        hold(straggler, vector(SIZE, 0), number=1)
    assert straggler.newest_round("model") == 3
    assert straggler.newest_round("other") is None


def test_a_store_that_removes_nothing_takes_no_round_from_who_held_it(uri, monkeypatch, caplog):
    members = [member(uri, rank, 2, keep_rounds=2) for rank in range(2)]

    def refuse(store, name, floor):
        raise ObjectStoreError(f"nothing of {name} below {floor} can be removed")

    with monkeypatch.context() as patch:
        patch.setattr("composer_replication.diloco.all_reduce.collect", refuse)
        for number in range(4):
            given = [vector(SIZE, number), vector(SIZE, 10 + number)]
            for outcome, mean in all_hold(members, given):
                assert outcome.round == number
                torch.testing.assert_close(mean, (given[0] + given[1]) / 2)
    assert "stay in the store for now" in caplog.text
    all_hold(members, [vector(SIZE, 0)] * 2)
    assert {key.split("/")[2] for key in open_store(uri).list("rounds")} == {"00000003", "00000004"}


def test_a_state_dict_goes_on_where_it_was(uri):
    members = [member(uri, rank, codec="int4") for rank in range(3)]
    all_hold(members, [vector(SIZE, rank) for rank in range(3)])
    again = [member(uri, rank, codec="int4") for rank in range(3)]
    for old, new in zip(members, again, strict=True):
        new.load_state_dict(old.state_dict())
        assert new.residual_norm("model") == old.residual_norm("model") > 0
    assert [outcome.round for outcome, _ in all_hold(again, [vector(SIZE, rank) for rank in range(3)])] == [1, 1, 1]


def test_rounds_of_several_fragments_go_on_at_the_same_time_and_those_of_one_in_turn(uri):
    members = [member(uri, rank) for rank in range(3)]

    def replica(one):
        tensors = [torch.full((SIZE,), float(one.rank + number)) for number in range(4)]
        names = ["a", "b", "a", "b"]
        pending = [one.start([tensor], name) for tensor, name in zip(tensors, names, strict=True)]
        return [(one_of.wait().round, float(tensor[0])) for one_of, tensor in zip(pending, tensors, strict=True)]

    for found in together(*(partial(replica, one) for one in members)):
        assert found == [(0, 1.0), (0, 2.0), (1, 3.0), (1, 4.0)]


def test_the_caller_goes_on_while_a_round_is_held(uri):
    members = [member(uri, rank, 2) for rank in range(2)]
    values = vector(SIZE, 0)
    pending = members[0].start([values], "model")
    assert not pending.done()
    kept = values.clone()
    values.zero_()  # what is sent was copied
    hold(members[1], vector(SIZE, 1))
    outcome = pending.wait()
    assert pending.wait() is outcome
    assert pending.done()
    torch.testing.assert_close(values, (kept + vector(SIZE, 1)) / 2)
    assert threading.active_count() < 50


def test_a_round_that_is_over_holds_no_memory(uri):
    one = ObjectStoreAllReduce(uri, rank=0, world_size=1)
    rounds = []
    for _ in range(3):
        tensor = torch.zeros(4)
        pending = one.start([tensor], "model")
        pending.wait()
        rounds.append((weakref.ref(pending), weakref.ref(tensor)))
        del tensor, pending
    gc.collect()
    assert [reference() for pair in rounds[:-1] for reference in pair] == [None] * 4


def test_codecs_that_compare_with_the_weights_ask_for_them(uri):
    members = [member(uri, rank, 2, codec="pulse") for rank in range(2)]
    with pytest.raises(ConfigError, match="the codec pulse compares with the weights"):
        members[0].start([vector(SIZE, 0)], "model")
    with pytest.raises(ConfigError, match="its reference 3"):
        members[0].start([vector(SIZE, 0)], "model", reference=[torch.zeros(3)])
    weights = vector(SIZE, 9, 0.02)
    found = all_hold(members, [vector(SIZE, rank, 1e-5) for rank in range(2)], reference=[weights])
    assert torch.equal(found[0][1], found[1][1])
    assert 0 < found[0][0].bytes_up < SIZE * 4
    assert found[0][0].residual > 0


@pytest.mark.parametrize("name", ["", "a/b", "..", "ü", "x" * 101])
def test_names_that_cannot_be_a_folder_are_refused(uri, name):
    with pytest.raises(ConfigError, match="names no fragment"):
        member(uri, 0).start([torch.zeros(2)], name)


def test_a_store_that_fails_is_told_in_wait(tmp_path):
    one = member(tmp_path / "store", 0, 2)
    (tmp_path / "store" / "rounds").write_text("in the way")
    values = torch.ones(3)
    with pytest.raises(ObjectStoreError, match="rounds/model/00000000/p/0 cannot be created"):
        one.start([values], "model").wait()
    assert torch.equal(values, torch.ones(3))
