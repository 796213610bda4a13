"""The manager over an object store, and how replicas come back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from in_threads import together
from plain_diloco import Replica
from torch.distributed import ReduceOp

from composer_replication.diloco.manager import MockManager
from composer_replication.types.errors import CheckpointError, ConfigError, RoundError

LATE = {"quorum": 1, "deadline_s": 0.05}


def run(folder, world, rounds, **options):
    made = [Replica(str(folder), rank, world, **options) for rank in range(world)]
    found = together(*[partial(replica.train, rounds) for replica in made])
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_replicas_hold_rounds_and_agree(tmp_path, world):
    found = run(tmp_path, world, 5)
    assert len({replica.state.digest() for replica in found}) == 1
    assert [report.round for report in found[0].reports] == [0, 1, 2, 3, 4]
    assert [report.fragment for report in found[0].reports] == [0, 1, 0, 1, 0]
    assert all(
        r.held and r.counted and r.members == tuple(range(world)) and r.bytes_up and r.bytes_down for r in found[0].reports
    )
    assert found[0].manager.num_participants() == world


@pytest.mark.parametrize("codec", ["fp32", "int4"])
@pytest.mark.parametrize("state_every", [1, 2])
def test_a_job_started_again_goes_on_bit_for_bit(tmp_path, codec, state_every):
    options = {"codec": codec, "saving": True, "state_every": state_every}
    whole = [replica.everything() for replica in run(tmp_path / "whole", 2, 6, **options)]
    run(tmp_path / "cut", 2, 3, **options)
    again = run(tmp_path / "cut", 2, 6, **options)
    assert [replica.joined.how for replica in again] == ["resumed", "resumed"]
    assert [replica.joined.round for replica in again] == [3 if state_every == 1 else 2] * 2
    assert [replica.everything() for replica in again] == whole


def test_one_replica_alone_repeats_what_it_had_lost(tmp_path):
    first = run(tmp_path, 2, 4, saving=True, state_every=2, snapshot_every=2)
    (again,) = together(Replica(str(tmp_path), 1, 2, saving=True, state_every=2, snapshot_every=2).train(4).everything)
    assert again == first[1].everything()


def test_one_without_a_state_of_its_own_is_healed(tmp_path):
    run(tmp_path, 2, 5, saving=True, state_every=0)
    late = Replica(str(tmp_path), 1, 2, seed=9, saving=True, state_every=0)
    joined = late.recovery.join()
    assert (joined.how, joined.round, joined.extra) == ("healed", 5, None)
    assert late.manager.current_step() == 5
    for p, original in zip(late.model.parameters(), [v for part in late.originals for v in part.values()], strict=True):
        assert torch.equal(p, original)


def test_one_that_is_behind_takes_the_missed_rounds_at_once_and_carries_what_it_learnt(tmp_path):
    slow = Replica(str(tmp_path), 0, 2, **LATE)
    slow.inner_step()
    learnt = [slow.state.progress(index) for index in range(2)]
    fast = Replica(str(tmp_path), 1, 2, **LATE).train(5)
    assert slow.manager.catch_up(keep_progress=True) == 5
    assert slow.state.digest() == fast.state.digest()
    assert all(report.caught_up and not report.counted and report.members == (1,) for report in slow.reports)
    for index in range(2):
        assert torch.equal(slow.manager.state_dict()["carried"][index], learnt[index])
        assert not slow.state.progress(index).any()
    assert slow.round()
    assert slow.manager.state_dict()["carried"].keys() == {0}  # round 5 was fragment 1's


@pytest.mark.parametrize(("needed", "looks"), [({}, 1), ({"quorum": 1, "deadline_s": 60.0}, 4)])
def test_where_everyone_is_needed_only_the_first_round_looks_whether_it_is_over(tmp_path, monkeypatch, needed, looks):
    made = [Replica(str(tmp_path), rank, 2, **needed) for rank in range(2)]
    asked = []
    look = made[0].all_reduce.newest_round
    monkeypatch.setattr(made[0].all_reduce, "newest_round", lambda name: asked.append(name) or look(name))
    together(*[partial(replica.train, 4) for replica in made])
    assert made[0].state.digest() == made[1].state.digest()
    assert len(asked) == looks


def test_what_was_carried_is_in_the_next_contribution(tmp_path):
    slow = Replica(str(tmp_path), 0, 2, **LATE)
    slow.manager._carried = {0: torch.ones(slow.state.size_of(0))}
    plain = Replica("memory://plain", 0, 1)
    before = plain.state.progress(0)
    assert not before.any()
    slow.round()
    plain.round()
    difference = plain.originals[0]["0/bias"] - slow.originals[0]["0/bias"]
    torch.testing.assert_close(difference, torch.full_like(difference, 0.7 * 1.9))


def test_what_was_carried_counts_once_where_the_round_fails_first(tmp_path):
    """The object that the failed attempt has put holds it already: the next attempt must not owe it back."""
    alone = Replica(str(tmp_path), 0, 2, timeout_s=0.3, retries=1)
    alone.manager._carried = {0: torch.full((alone.state.size_of(0),), 100.0)}
    assert alone.round() is False
    alone.all_reduce._setting = replace(alone.all_reduce._setting, timeout_s=120.0, deadline_s=120.0)
    other = Replica(str(tmp_path), 1, 2)
    assert together(alone.round, other.round) == [True, True]
    assert alone.manager.state_dict()["carried"] == {}
    assert alone.all_reduce.residual_norm(alone.state.place(0).name) < 10.0, "what both attempts learnt differs, and no more"


def test_one_whose_round_is_removed_while_it_holds_it_loads_the_newest_snapshot(tmp_path, monkeypatch):
    options = {"saving": True, "snapshot_every": 1, **LATE}
    slow, fast = (Replica(str(tmp_path), rank, 2, **options) for rank in range(2))
    slow.recovery.join()
    begin = slow.manager.start_quorum

    def overtaken():
        begin()
        fast.train(8)

    monkeypatch.setattr(slow.manager, "start_quorum", overtaken)
    assert slow.round() is False
    monkeypatch.setattr(slow.manager, "start_quorum", begin)
    assert slow.round() is True
    assert slow.manager.current_step() == 9
    assert fast.manager.catch_up(keep_progress=False) == 1
    assert slow.state.digest() == fast.state.digest()


def test_a_snapshot_that_is_removed_while_it_is_read_gives_way_to_the_newer_one(tmp_path, monkeypatch):
    options = {"saving": True, "snapshot_every": 1, **LATE}
    Replica(str(tmp_path), 1, 2, **options).train(2)
    late = Replica(str(tmp_path), 0, 2, seed=9, **options)
    load, tried, ahead = late.recovery._load_snapshot, [], []

    def overtaken(number):
        tried.append(number)
        if len(tried) == 1:
            ahead.append(Replica(str(tmp_path), 1, 2, **options).train(8))
        load(number)

    monkeypatch.setattr(late.recovery, "_load_snapshot", overtaken)
    joined = late.recovery.join()
    assert (joined.how, joined.round, tried) == ("healed", 8, [2, 8])
    assert late.state.digest() == ahead[0].state.digest()


def test_a_failed_round_is_not_committed_and_too_many_are_an_error(tmp_path):
    alone = Replica(str(tmp_path), 0, 2, timeout_s=0.3, retries=1)
    start = alone.state.digest()
    assert alone.round() is False
    assert alone.manager.current_step() == 0
    assert alone.state.digest() == start
    with pytest.raises(RoundError, match="rank 1 in round 0"):
        alone.round()
    assert [report.held for report in alone.reports] == [False, False]


def test_what_torchft_alone_can_is_refused(tmp_path):
    replica = Replica(str(tmp_path), 0, 1)
    with pytest.raises(ConfigError, match="should_quantize"):
        replica.manager.allreduce(torch.ones(2), should_quantize=True)
    with pytest.raises(ConfigError, match="SUM"):
        replica.manager.allreduce(torch.ones(2), reduce_op=ReduceOp.SUM)
    work = replica.manager.allreduce(torch.ones(2))
    with pytest.raises(ConfigError, match="before all of it was queued"):
        work.wait()


def test_a_manager_without_a_model_says_so():
    with pytest.raises(ConfigError, match="serves no model yet"):
        MockManager().start_quorum()


def test_another_model_cannot_join(tmp_path):
    run(tmp_path, 1, 1, saving=True)
    other = Replica(str(tmp_path), 0, 1, saving=True)
    other.state._parts.pop()
    with pytest.raises(CheckpointError, match="of another model"):
        other.recovery.join()


@pytest.mark.parametrize(("snapshot_every", "state_every"), [(0, 0), (2, 3), (2, -1)])
def test_intervals_that_do_not_fit_are_refused(tmp_path, snapshot_every, state_every):
    with pytest.raises(ConfigError, match=f"snapshot_every = {snapshot_every} and state_every = {state_every}"):
        Replica(str(tmp_path), 0, 1, saving=True, snapshot_every=snapshot_every, state_every=state_every)
