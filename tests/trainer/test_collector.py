"""What a step practises on, and that it practised at all: the data cursor is the step number, and nothing else decides."""

from __future__ import annotations

import asyncio
import io
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from composer_replication.config import CurriculumConfig
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.alarms import run_alarms
from composer_replication.observe.report import rebuild_report
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.journal import ArmJournal, RolloutMeter, refuse_unscored, rollout_metrics
from composer_replication.trainer.sampling.task_sampler import choose_tasks
from composer_replication.types import GradeReport, Group, Reward, StopReason, Trajectory, Unscored
from composer_replication.types.errors import SandboxError

TASKS = list("abcdefghij")


def test_a_pass_takes_every_task_once_in_another_order() -> None:
    first = [t for step in (1, 2) for t in choose_tasks(TASKS, 0, step, 5)]
    second = [t for step in (3, 4) for t in choose_tasks(TASKS, 0, step, 5)]
    assert sorted(first) == sorted(second) == TASKS
    assert first != second
    assert first != [t for step in (1, 2) for t in choose_tasks(TASKS, 1, step, 5)]


@given(count=st.integers(1, len(TASKS)), seed=st.integers(0, 3))
def test_no_task_is_practised_more_than_another(count: int, seed: int) -> None:
    """Also where steps span two passes: after as many steps as there are tasks, each was taken `count` times."""
    taken = Counter(t for step in range(1, len(TASKS) + 1) for t in choose_tasks(TASKS, seed, step, count))
    assert taken == dict.fromkeys(TASKS, count)


@given(step=st.integers(1, 50), count=st.integers(1, len(TASKS)), seed=st.integers(0, 3))
def test_a_step_has_no_task_twice(step: int, count: int, seed: int) -> None:
    chosen = choose_tasks(TASKS, seed, step, count)
    assert len(set(chosen)) == count
    assert chosen == choose_tasks(TASKS, seed, step, count)


def test_more_tasks_than_there_are() -> None:
    with pytest.raises(ValueError, match="cannot take 11 of 10 tasks"):
        choose_tasks(TASKS, 0, 1, 11)


def group(*rewards: Reward) -> Group:
    trajectories = [
        Trajectory(
            trajectory_id=str(i), task_id="t", policy_version=0, messages=(), tools=(), prompt_ids=(1,), turns=(),
            stop_reason=StopReason.SUBMITTED, temperature=1.0, reward=reward,
        )
        for i, reward in enumerate(rewards)
    ]  # fmt: skip
    return Group(group_id="g", task_id="t", trajectories=tuple(trajectories))


@pytest.mark.parametrize("work", ["collect", "record_traces"])
def test_the_engine_rests_as_soon_as_nothing_is_sampled(work: str) -> None:
    """Before traces are shown to teachers, and before hints and rewards are read from the policy on the same GPU."""
    order: list[str] = []

    class Watched(RolloutCollector):
        async def _roll_out(self, *_: Any, **__: Any) -> list[Group]:
            order.append("sampled")
            return [group(1.0, 1.0)]

    def later(*_: Any) -> None:
        order.append("kept")

    task = SimpleNamespace(spec=SimpleNamespace(task_id="t"))
    rollout = SimpleNamespace(groups=1, group_size=2, refills=1)
    replay = SimpleNamespace(traces_per_task=1)
    config = SimpleNamespace(seed=0, rollout=rollout, curriculum=CurriculumConfig(), loss=SimpleNamespace(replay=replay))
    context = SimpleNamespace(train=[task, task], run_dir=SimpleNamespace(write_traces=later))
    engine = SimpleNamespace(rest=lambda: order.append("rested"))
    collector = Watched(context, config, engine, None, SimpleNamespace(arm="main"))  # type: ignore[arg-type]
    asyncio.run(collector.collect(1, 0) if work == "collect" else collector.record_traces())
    assert order == (["sampled", "rested"] if work == "collect" else ["sampled", "rested", "kept"])


def test_a_step_without_a_verdict_stops_the_run() -> None:
    broken = Unscored("no space left in the box")
    refuse_unscored([group(broken, broken), group(broken, 0.0)], "eval")
    with pytest.raises(SandboxError, match="eval: none of the 3 rollouts could be graded: no space left in the box"):
        refuse_unscored([group(broken, broken), group(broken)], "eval")


def test_siblings_are_no_independent_measurements() -> None:
    """The unit is the group, as in pass@1: more siblings that agree make no mean more certain."""
    for siblings in (1, 2, 8):
        metrics = rollout_metrics([group(*[1.0] * siblings), group(*[0.0] * siblings)])
        assert (metrics["reward/mean"], metrics["reward/mean_se"]) == (0.5, 0.5)
        assert metrics["rlvr/frac_zero_std"] == 1.0
    broken = Unscored("no space left in the box")
    metrics = rollout_metrics([group(1.0, broken), group(0.0, 0.0), group(1.0, 0.0), group(broken, broken)])
    assert (metrics["reward/mean"], metrics["reward/unscored"], metrics["rlvr/frac_zero_std"]) == (0.5, 3.0, 0.75)
    assert metrics["reward/mean_se"] == pytest.approx(0.5 / 3**0.5)
    assert math.isnan(rollout_metrics([group(1.0, 0.0)])["reward/mean_se"])


def test_alarms_are_counted_and_said_aloud(tmp_path: Path) -> None:
    frames = "the code looks at the frames of its callers ({}), which the gold code does not need"
    alarms = [(frames.format("f_back"), "every test passed"), (), (frames.format("inspect"),)]
    verdicts = [GradeReport(reward=0.0, outcomes={}, alarms=said) for said in alarms]
    trajectories = tuple(replace(t, grade=g) for t, g in zip(group(0.0, 0.0, 0.0).trajectories, verdicts, strict=True))
    metrics = rollout_metrics([Group(group_id="g", task_id="t", trajectories=trajectories)])
    assert (metrics["cheat/alarms"], metrics["reward/mean"]) == (2.0, 0.0)
    run = RunDir.create(tmp_path / "run")
    for arm, step, count in (("quiet", 1, 0.0), ("loud", 1, 2.0), ("loud", 2, 2.0)):
        run.log_metrics(arm, step, {"cheat/alarms": count})
        run.write_trajectories(arm, step, trajectories if count else trajectories[1:2])
    journal = ArmJournal(run, Terminal(Console(file=io.StringIO())), "loud", 2, RolloutMeter())
    evaluation = journal.write_evaluation(1, trajectories, passed=0.0, se=0.0, unscored=0)
    assert evaluation["eval/alarms"] == 2.0
    run.log_metrics("loud", 1, evaluation)
    (found,) = run_alarms(run)
    assert found.causes == [("the code looks at the frames of its callers", 6), ("every test passed", 3)]
    places = [(2, False, 0), (2, False, 2), (1, True, 0), (1, True, 2), (1, False, 0)]
    assert [(rollout.step, rollout.evaluation, rollout.trajectory_id) for rollout in found.examples] == [
        (step, of_evaluation, trajectories[n].trajectory_id) for step, of_evaluation, n in places
    ]
    assert found.sentence().startswith(
        "CHEAT ALARM: 6 rollouts of loud raised an alarm, most often: the code looks at the frames of its callers (6); every test"
    )
    page = rebuild_report(run).read_text()
    assert "<strong>loud</strong>: 6 rollouts raised an alarm" in page
    assert "<li>the code looks at the frames of its callers: 6</li>" in page
    assert f'href="#arm=loud&amp;step=2&amp;trajectory={trajectories[0].trajectory_id}"' in page
    assert f'href="#arm=loud&amp;step=eval-1&amp;trajectory={trajectories[0].trajectory_id}"' in page
    assert "<strong>quiet</strong>: " not in page
