"""The outer loop over an object store: what it computes, and what becomes of it when replicas fail."""

from __future__ import annotations

from functools import partial

import pytest
import small_job
import streaming_diloco
import torch
from in_threads import together
from small_job import Replica
from told_clock import HURRY, ToldClock

from composer_replication.diloco.codecs import CODECS
from composer_replication.diloco.fragments import split_into_fragments
from composer_replication.diloco.manager import MockManager
from composer_replication.diloco.outer_loop import make_diloco_outer_loop
from composer_replication.types.errors import CheckpointError, ConfigError, RoundError


def run(folder, world, rounds, each=lambda replica: None, **options):
    """Replicas as threads, after `rounds` rounds."""
    made = [Replica(str(folder), rank, world, **options) for rank in range(world)]
    found = together(*[partial(replica.train, rounds, each) for replica in made])
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


@pytest.mark.parametrize(
    ("fragments", "sync_every", "delay", "mix"),
    [(1, 4, 0, 0.0), (1, 4, 2, 0.5), (3, 6, 0, 0.0), (3, 6, 1, 0.0), (3, 9, 2, 0.25), (2, 4, 1, 1.0)],
)
@pytest.mark.parametrize("world", [2, 3])
def test_it_computes_streaming_diloco(tmp_path, world, fragments, sync_every, delay, mix):
    options = {"fragments": fragments, "sync_every": sync_every, "delay": delay, "mix": mix}
    rounds = 3 * fragments + 1
    found = run(tmp_path, world, rounds, inner="sgd", outer_lr=0.7, outer_momentum=0.9, saving=False, **options)
    steps = rounds * sync_every // fragments
    parts = [
        [name.replace("/", ".") for name, _ in f.named_parameters()] for f in split_into_fragments(small_job.network(), fragments)
    ]
    agreed, locals_ = streaming_diloco.train(
        small_job.network(),
        parts,
        partial(small_job.optimizer_of, "sgd"),
        small_job.inner_step,
        replicas=world,
        steps=steps,
        sync_every=sync_every,
        lr=0.7,
        momentum=0.9,
        delay=delay,
        mix=mix,
    )
    for replica, local in zip(found, locals_, strict=True):
        assert replica.step == steps
        for name, p in replica.model.named_parameters():
            torch.testing.assert_close(p.double(), local[name], rtol=1e-4, atol=1e-6)
        originals = {n.replace("/", "."): p for part in replica.loop.state.tree() for n, p in part["original_parameters"].items()}
        for name, p in originals.items():
            torch.testing.assert_close(p.double(), agreed[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_replicas_agree_bit_for_bit_after_every_round(tmp_path, codec):
    digests = {}

    def note(replica):
        if replica.loop.at_boundary:
            digests.setdefault(replica.loop.round, set()).add(replica.loop.state.digest())

    run(tmp_path, 3, 4, note, fragments=2, sync_every=4, delay=1, saving=False, reduce={"codec": codec})
    assert sorted(digests) == [1, 2, 3, 4]
    assert all(len(found) == 1 for found in digests.values())


def test_muon_inside_learns_and_agrees(tmp_path):
    found = run(tmp_path, 2, 8, inner="muon", fragments=2, sync_every=6, saving=False)
    assert len({replica.loop.state.digest() for replica in found}) == 1
    before = small_job.network()
    x, y = small_job.batch(9, 9)
    errors = [(model(x) - y).square().mean() for model in (before, found[0].model)]
    assert errors[1] < 0.8 * errors[0]


def test_a_round_is_on_its_way_while_inner_steps_go_on(tmp_path):
    reports, seen = [], []

    def look(replica):
        flight = replica.manager._flight
        if flight.pending is not None and flight.outcome is None:
            seen.append(replica.step % 4)

    run(tmp_path, 2, 2, look, sync_every=4, delay=2, report=reports.append, saving=False)
    assert set(seen) == {2, 3}  # from the step it starts after up to the one before it is waited for
    assert all(r.bytes_up > 0 and r.bytes_down > 0 and r.members == (0, 1) for r in reports)


def test_alone_it_needs_no_store():
    model = small_job.network()
    inner = torch.optim.SGD(model.parameters(), lr=0.02)
    loop = make_diloco_outer_loop(
        MockManager(), model, inner_optimizer=inner, sync_every=2, outer_lr=1.0, outer_momentum=0.0, nesterov=False
    )
    plain = small_job.network()
    alone = torch.optim.SGD(plain.parameters(), lr=0.02)
    with loop:
        for step in range(6):
            small_job.inner_step(model, inner, 0, step)
            small_job.inner_step(plain, alone, 0, step)
    assert loop.round == 3
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(ConfigError, match="no store to save"):
        loop.save()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sync_every": 5, "fragments": 2}, "sync_every = 5"),
        ({"sync_every": 4, "delay": 4}, "delay = 4"),
        ({"mix": 1.5}, "mix = 1.5"),
        ({"outer_lr": 0.0}, "outer_lr = 0.0"),
        ({"outer_momentum": 0.0}, "nesterov without"),
        ({"fragments": 9, "sync_every": 9}, "has 3 blocks"),
    ],
)
def test_numbers_that_do_not_fit_are_one_clear_error(options, says):
    model = small_job.network()
    with pytest.raises(ConfigError, match=says):
        make_diloco_outer_loop(MockManager(), model, inner_optimizer=torch.optim.SGD(model.parameters()), **options)


def test_too_few_replicas_are_an_error_that_names_them(tmp_path):
    alone = Replica(str(tmp_path), 0, 2, sync_every=2, saving=False, reduce={"timeout_s": 1.0})
    with pytest.raises(RoundError, match="rank 1 in round 0"):
        alone.train(1)
    assert alone.loop.round == 0


def test_a_failed_round_is_not_committed_and_held_when_the_others_come(tmp_path):
    reports = []
    clock = ToldClock(HURRY)
    first = Replica(str(tmp_path), 0, 2, sync_every=2, saving=False, reduce={"clock": clock}, report=reports.append)
    first.manager._retries = 1
    start = first.loop.state.digest()
    with first.loop:
        for step in (1, 2):
            small_job.inner_step(first.model, first.inner, 0, step)
        assert first.loop.round == 0
        assert first.loop.state.digest() == start
        assert [r.held for r in reports] == [False]
        clock.run(1.0)
        second = Replica(str(tmp_path), 1, 2, sync_every=2, saving=False)

        def go_on():
            for step in (3, 4):
                small_job.inner_step(first.model, first.inner, 0, step)

        for one in together(go_on, partial(second.train, 1)):
            assert not isinstance(one, Exception), one
    assert first.loop.round == second.loop.round == 1
    assert first.loop.state.digest() == second.loop.state.digest()


def test_a_late_joiner_is_healed_from_the_store_in_one_round(tmp_path):
    reports = []
    options = {"fragments": 2, "sync_every": 4, "snapshot_every": 3}
    made = [Replica(str(tmp_path), rank, 3, reduce={"quorum": 2, "deadline_s": 0.2}, **options) for rank in (0, 1)]
    together(*[partial(replica.train, 5) for replica in made])  # from here on rounds wait for all three
    late = Replica(str(tmp_path), 2, 3, seed=7, report=reports.append, **options)  # its first weights are others, too
    again = [Replica(str(tmp_path), rank, 3, **options) for rank in (0, 1)]
    found = together(*[partial(replica.train, 9) for replica in (*again, late)])
    assert [one.how for one in found] == ["resumed", "resumed", "healed"]
    assert len({one.loop.state.digest() for one in found}) == 1
    first = next(r for r in reports if not r.caught_up)
    assert first.round == 5
    assert first.held


def test_a_replica_that_is_behind_takes_all_it_missed_at_once_and_contributes_what_it_learnt(tmp_path):
    reports = []
    options = {"fragments": 2, "sync_every": 4, "saving": False, "outer_momentum": 0.0, "nesterov": False, "outer_lr": 1.0}
    options["reduce"] = {"quorum": 1, "deadline_s": 0.2}
    slow = Replica(str(tmp_path), 0, 2, report=reports.append, **options)
    small_job.inner_step(slow.model, slow.inner, 0, 1)
    progress = [slow.loop.state.progress(0), slow.loop.state.progress(1)]
    fast = Replica(str(tmp_path), 1, 2, **options).train(5)
    assert slow.manager.catch_up(keep_progress=True) == 5
    assert slow.loop.state.digest() == fast.loop.state.digest()
    assert [r.round for r in reports] == [0, 1, 2, 3, 4]
    assert all(r.caught_up for r in reports)
    for fragment in (0, 1):
        assert torch.equal(slow.manager._carried[fragment], progress[fragment])
        assert not slow.loop.state.progress(fragment).any()
    with slow.loop:
        while slow.loop.round < 7:
            small_job.inner_step(slow.model, slow.inner, 0, 2)
    assert slow.manager._carried == {}
    assert reports[-1].counted


def test_one_that_is_behind_what_the_store_keeps_loads_the_newest_snapshot(tmp_path):
    quorum = {"quorum": 1, "deadline_s": 0.1}
    options = {"sync_every": 2, "snapshot_every": 2, "reduce": quorum}
    slow = Replica(str(tmp_path), 0, 2, **options)
    slow.loop.join()
    fast = Replica(str(tmp_path), 1, 2, **options).train(8)
    with slow.loop:
        while slow.loop.round < 9:
            small_job.inner_step(slow.model, slow.inner, 0, 1)
    assert Replica(str(tmp_path), 1, 2, **options).train(9).loop.state.digest() == slow.loop.state.digest()
    assert fast.loop.round == 8


def test_other_settings_than_the_jobs_are_refused(tmp_path):
    run(tmp_path, 1, 1, sync_every=2)
    with pytest.raises(ConfigError, match=r"outer_lr = 0.5, but the job was begun with 0.7"):
        run(tmp_path, 1, 2, sync_every=2, outer_lr=0.5)


def test_a_damaged_snapshot_is_an_error_that_names_it(tmp_path):
    run(tmp_path, 1, 2, sync_every=2, snapshot_every=1, state_every=0)
    file = next((tmp_path / "job" / "global" / "00000002").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"global/00000002/.*not what was saved"):
        run(tmp_path, 1, 3, sync_every=2, snapshot_every=1, state_every=0)


def test_only_what_a_restart_needs_is_kept(tmp_path):
    run(tmp_path, 2, 9, sync_every=4, fragments=2, snapshot_every=2, state_every=1)

    def kept(folder):
        return sorted({p.relative_to(tmp_path / folder).parts[0] for p in (tmp_path / folder).rglob("*") if p.is_file()})

    assert kept("job/global") == ["00000006", "00000008"]
    assert kept("job/replicas/00000") == kept("job/replicas/00001") == ["00000008", "00000009"]
    assert kept("rounds/fragment0") == ["00000003", "00000004"]
    assert kept("rounds/fragment1") == ["00000003"]
