"""A run says at its end what was learnt."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from made_trajectories import scored

from composer_replication.observe import RunDir
from composer_replication.observe.metrics import t_975
from composer_replication.observe.report import rebuild_report
from composer_replication.observe.verdict import Learnt, Verdict, change_of, refuse_failed, run_verdicts
from composer_replication.types import Reward, Trajectory, Unscored
from composer_replication.types.channels import switched_off
from composer_replication.types.errors import NothingLearntError

EQUAL = "every advantage is 0: no group has rewards that differ"
NO_TURNS = "no hints in this step (no error turns)"
ALL_OFF = {"rlvr": EQUAL, "hint": NO_TURNS, "replay": switched_off("replay")}


def rollouts(rewards: Mapping[str, Sequence[Reward]]) -> list[Trajectory]:
    return [scored(task, n, reward) for task, each in rewards.items() for n, reward in enumerate(each)]


def write(
    folder: Path, *, steps: Sequence[Mapping[str, str]], metrics: Mapping[str, float] | None = None, **evaluations: Any
) -> RunDir:
    """Write a run of one arm: why channels were off at each step, and the evaluations `before` and `after`."""
    run = RunDir.create(folder)
    values = {"rollout/tokens_total": 900.0, "reward/mean": 0.0, "rlvr/frac_zero_std": 1.0, **(metrics or {})}
    for at, name in ((0, "before"), (len(steps), "after")):
        if name in evaluations:
            run.write_evaluation("main", at, rollouts(evaluations[name]))
    for step, off in enumerate(steps, start=1):
        run.log_event("step", "a line", arm="main", step=step, off=dict(off))
        run.log_metrics("main", step, values)
    return run


def verdict(folder: Path, **written: Any) -> Verdict:
    (found,) = run_verdicts(write(folder, **written))
    return found


def test_students_quantile_agrees_with_scipy() -> None:
    for freedom in range(1, 200):
        within = {3: 0.04, 4: 0.003}.get(freedom, 0.001)
        assert t_975(freedom) == pytest.approx(float(scipy.stats.t.ppf(0.975, freedom)), abs=within), freedom


def test_the_interval_is_that_of_a_paired_t_test(tmp_path: Path) -> None:
    draw = random.Random(0)
    rates = {f"task_{n}": [draw.choice([0.0, 1.0]) for _ in range(8)] for n in range(12)}
    later = {name: [max(one, draw.choice([0.0, 0.0, 1.0])) for one in each] for name, each in rates.items()}
    found = change_of(write(tmp_path / "run", steps=[{}], before=rates, after=later), "main")
    assert found is not None
    share = {name: [sum(of[name]) / 8 for name in rates] for name, of in (("before", rates), ("after", later))}
    interval = scipy.stats.ttest_rel(share["after"], share["before"]).confidence_interval(0.95)
    assert found.after - found.before - found.half_width == pytest.approx(interval.low, abs=1e-4)
    assert found.after - found.before + found.half_width == pytest.approx(interval.high, abs=1e-4)


@pytest.mark.parametrize(("before", "after", "learnt"), [(0.0, 1.0, Learnt.BETTER), (1.0, 0.0, Learnt.WORSE)])
def test_a_change_beyond_the_interval(tmp_path: Path, before: float, after: float, learnt: Learnt) -> None:
    tasks = {f"task_{n}": [before] * 3 + [1.0 - before][: n % 2] for n in range(8)}
    found = verdict(tmp_path / "run", steps=[{}], before=tasks, after={name: [after] * 4 for name in tasks})
    assert found.learnt is learnt
    assert "95 % interval" in found.sentence()
    assert found.failed == (learnt is Learnt.WORSE)
    assert bool(found.fix) == (learnt is Learnt.WORSE)


def test_few_tasks_and_small_changes_show_nothing(tmp_path: Path) -> None:
    five = {f"task_{n}": [0.0] for n in range(5)}
    found = verdict(tmp_path / "five", steps=[{}], before=five, after={name: [1.0] for name in five})
    assert found.learnt is Learnt.UNCLEAR
    assert "at least 6 held-out tasks" in found.sentence()
    many = {f"task_{n}": [0.0, 1.0] for n in range(30)}
    found = verdict(tmp_path / "many", steps=[{}], before=many, after={**many, "task_0": [1.0, 1.0]})
    assert found.learnt is Learnt.UNCLEAR
    assert "eval.samples" in found.sentence()
    assert not found.failed


def test_unscored_rollouts_and_tasks_of_one_evaluation_do_not_count(tmp_path: Path) -> None:
    before = {"a": [0.0, Unscored("the box broke")], "b": [Unscored("the box broke")], "c": [0.0]}
    found = change_of(write(tmp_path / "run", steps=[{}], before=before, after={"a": [1.0], "b": [1.0], "d": [1.0]}), "main")
    assert found is not None
    assert (found.tasks, found.before, found.after) == (1, 0.0, 1.0)
    assert math.isnan(found.half_width)


def test_nothing_measured_says_how_to_measure(tmp_path: Path) -> None:
    found = verdict(tmp_path / "run", steps=[{}])
    assert found.learnt is Learnt.UNMEASURED
    assert "tasks.held_out" in found.sentence()
    assert found.failed, "strict = true asks for a run whose result is known"


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"rollout/tokens_total": 0.0, "stop/context_tokens": 1.0}, ["no token was ever sampled", "rollout.context_tokens"]),
        ({"stop/no_tool_call": 0.9}, ["90% of the rollouts ended with a turn that calls no tool", "trained to call tools"]),
        ({"stop/turn_tokens": 0.8}, ["80% of the rollouts were cut off inside a turn", "rollout.turn_tokens"]),
        ({"stop/max_turns": 0.8}, ["rollout.max_turns"]),
        ({"stop/trajectory_tokens": 0.8}, ["rollout.trajectory_tokens"]),
        ({"stop/context_tokens": 0.8}, ["filled the context", "rollout.context_tokens"]),
        ({}, ["no rollout was rewarded", "easier tasks"]),
        ({"reward/mean": 1.0}, ["every rollout was rewarded", "harder tasks"]),
        ({"reward/mean": 0.5}, ["siblings always got the same reward", "rollout.group_size"]),
        ({"reward/mean": math.nan}, [EQUAL, "--dry-run"]),
    ],
)
def test_nothing_learnt_says_why_and_what_to_try(tmp_path: Path, metrics: dict[str, float], told: list[str]) -> None:
    found = verdict(tmp_path / "run", steps=[ALL_OFF, ALL_OFF], metrics=metrics, before={"a": [0.0]}, after={"a": [0.0]})
    assert found.learnt is Learnt.NOTHING
    assert found.failed
    assert found.sentence().startswith("VERDICT on main: nothing was learnt: there was nothing to train on in 2 steps, because ")
    for part in told:
        assert part in found.sentence()


def test_one_step_that_trained_is_something(tmp_path: Path) -> None:
    assert verdict(tmp_path / "run", steps=[ALL_OFF, {"replay": "no pairs"}]).learnt is not Learnt.NOTHING


def test_a_channel_that_never_trained_is_named_and_one_switched_off_is_not(tmp_path: Path) -> None:
    off = {"hint": NO_TURNS, "replay": switched_off("replay")}
    found = verdict(tmp_path / "run", steps=[off, {**off, "hint": "no hints in this step (2 leaks)"}, off])
    assert found.idle == {"hint": NO_TURNS}
    assert f"The hint channel is on and never trained: {NO_TURNS}." in found.sentence()
    assert found.failed
    known = {task: [0.0] for task in "abcdefgh"}
    trained_once = verdict(tmp_path / "once", steps=[off, {"replay": switched_off("replay")}], before=known, after=known)
    assert trained_once.idle == {}
    assert trained_once.learnt is Learnt.UNCLEAR
    assert not trained_once.failed


def test_rollouts_that_taught_nothing_are_explained_beside_a_channel_that_trained(tmp_path: Path) -> None:
    off = {"rlvr": EQUAL, "hint": NO_TURNS}  # pairs of a file train in every step
    known = {task: [0.0] for task in "abcdefgh"}
    found = verdict(tmp_path / "run", steps=[off, off], metrics={"rollout/tokens_total": 0.0}, before=known, after=known)
    assert found.learnt is Learnt.UNCLEAR
    said = found.sentence()
    assert f"The rlvr channel is on and never trained: {EQUAL} (no token was ever sampled" in said
    assert "Try: a higher rollout.context_tokens; --dry-run prints how long the prompts are; more steps" in said


def test_a_step_that_is_repeated_after_a_crash_counts_once_as_it_was_at_last(tmp_path: Path) -> None:
    run = write(tmp_path / "run", steps=[ALL_OFF])
    run.log_event("step", "again", arm="main", step=1, off={})
    (found,) = run_verdicts(run)
    assert found.learnt is Learnt.UNMEASURED


def test_strict_refuses_and_names_the_arms() -> None:
    refuse_failed([])
    with pytest.raises(NothingLearntError, match="the verdict on a, b") as refused:
        refuse_failed(["a", "b"])
    assert refused.value.exit_code == 8


def test_the_report_shows_it_before_and_after_the_end(tmp_path: Path) -> None:
    run = write(tmp_path / "run", steps=[ALL_OFF], metrics={"stop/no_tool_call": 0.9})
    page = rebuild_report(run).read_text()
    assert "<li>VERDICT on main: nothing was learnt: there was nothing to train on in 1 step" in page
    assert "No arm has taken a step." in rebuild_report(RunDir.create(tmp_path / "new")).read_text()
