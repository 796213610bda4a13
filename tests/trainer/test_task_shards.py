"""Replicas share out the tasks: together they practise on what one alone would, and never on the same one."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.config.run import CurriculumConfig
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.sampling.task_sampler import choose_tasks
from composer_replication.trainer.sampling.task_shards import TaskShard

JOBS = st.fixed_dictionaries(
    {"world": st.integers(1, 5), "count": st.integers(1, 3), "window": st.integers(1, 6), "size": st.integers(15, 60)}
)


def of_step(world, count, window, size, step, seed=0):
    return [TaskShard(rank, world, seed, window).of_step(range(size), step, count) for rank in range(world)]


@given(job=JOBS, round_=st.integers(1, 20))
def test_no_task_is_taken_twice_in_a_round(job, round_):
    """Neither for the step itself nor for what makes up for it, where there are enough of them."""
    window = min(job["window"], job["size"] // (job["count"] * job["world"]))
    taken = Counter()
    for step in range((round_ - 1) * window + 1, round_ * window + 1):
        for mine, others in of_step(**job | {"window": window}, step=step):
            assert len(mine) == job["count"]
            taken.update([*mine, *others])
    assert max(taken.values()) == 1
    assert set(taken) == set(range(job["size"]))


@pytest.mark.slow
@given(job=JOBS, step=st.integers(1, 40))
def test_all_replicas_together_take_what_one_would_and_no_task_more_than_another(job, step):
    whole = sorted(task for mine, _ in of_step(**job, step=step) for task in mine)
    alone = TaskShard(0, 1, 0, job["window"]).of_step(range(job["size"]), step, job["count"] * job["world"])
    assert whole == sorted(alone[0])
    assert len(set(whole)) == len(whole)
    steps = max(1, min(job["window"], job["size"] // len(whole))) * job["size"]
    taken = Counter(task for at in range(1, steps + 1) for mine, _ in of_step(**job, step=at) for task in mine)
    assert len(set(taken.values())) == 1


def test_where_a_round_needs_more_tasks_than_there_are_steps_repeat_as_late_as_they_can():
    job = {"world": 2, "count": 2, "window": 10, "size": 9}
    for first in range(1, 20, 2):
        taken = [task for step in (first, first + 1) for mine, _ in of_step(**job, step=step) for task in mine]
        assert len(set(taken)) == 8


def test_a_step_says_it_all():
    job = {"world": 3, "count": 2, "window": 4, "size": 30}
    assert of_step(**job, step=7) == of_step(**job, step=7)
    assert of_step(**job, step=7) != of_step(**job, step=8)
    assert of_step(**job, step=7) != of_step(**job, step=7, seed=1)


def actor(rank, count, **curriculum):
    """One replica of two over 12 tasks, on whose environments nothing is done."""
    tasks = [
        SimpleNamespace(spec=SimpleNamespace(task_id=f"t{number:02}", fail_to_pass=("a",)), provenance={}) for number in range(12)
    ]
    rollout = SimpleNamespace(groups=count)
    config = SimpleNamespace(seed=10 * rank, rollout=rollout, curriculum=CurriculumConfig(**curriculum))
    context = SimpleNamespace(train=tasks, coding=SimpleNamespace(train=tasks))
    engine = SimpleNamespace(rest=lambda: None)
    return RolloutCollector(context, config, engine, None, SimpleNamespace(arm="main"), TaskShard(rank, 2, 0, 3))


def names(tasks):
    return {task.spec.task_id for task in tasks}


def test_an_actor_practises_on_its_own_share_and_refills_from_it():
    for step in range(1, 10):
        (mine, others), (theirs, _) = (actor(rank, 2)._choose(step) for rank in range(2))
        assert len(mine) == len(theirs) == 2
        assert not names(mine) & names(theirs)
        assert not names(others) & names([*mine, *theirs])
    assert names(mine) != names(choose_tasks(actor(0, 2)._train, 0, 9, 2))


def test_with_a_curriculum_a_round_deals_the_tasks_out():
    for first in (1, 4, 7):
        mine, theirs = ([actor(rank, 2, enabled=True)._choose(step) for step in range(first, first + 3)] for rank in range(2))
        assert not names(t for _, pool in mine for t in pool) & names(t for _, pool in theirs for t in pool)
        assert len(names(t for _, pool in [*mine, *theirs] for t in pool)) == 12
        assert all(len(tasks) == 2 and names(tasks) <= names(pool) for tasks, pool in [*mine, *theirs])


def test_the_traces_that_replay_freezes_are_shared_out_too(monkeypatch):
    recorded = []

    async def collect(self, tasks, count, **_):
        recorded.append(names(tasks))
        return []

    monkeypatch.setattr(RolloutCollector, "_roll_out", collect)
    for rank in range(2):
        one = actor(rank, 2)
        one.config.loss = SimpleNamespace(replay=SimpleNamespace(traces_per_task=1))
        one.context.run_dir = SimpleNamespace(write_traces=lambda *_: None)
        asyncio.run(one.record_traces())
    assert [len(part) for part in recorded] == [6, 6]
    assert not recorded[0] & recorded[1]
