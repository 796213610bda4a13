"""What follows from a trial: rollouts, time, disk and money of an arm, and what does not fit."""

from __future__ import annotations

import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from world import World, finish

from composer_replication.config import RunConfig, load_config
from composer_replication.observe import RunDir, Terminal
from composer_replication.teachers.planner import Range, ReplayPlan
from composer_replication.trainer.planning.forecast import check_forecast, duration, make_forecast
from composer_replication.trainer.planning.trial import Trial, _without_judge, try_run
from composer_replication.trainer.waiting import wait_for
from composer_replication.types import StopReason, Trajectory, Turn
from composer_replication.types.errors import BudgetExceededError, ConfigError

Usage = namedtuple("Usage", "total used free")


def trajectory(tokens: int) -> Trajectory:
    ids = tuple(range(tokens))
    turn = Turn(action_ids=ids, logprobs=(-1.0,) * tokens, text="", tool_calls=(), results=(), observation_ids=())
    return Trajectory(
        trajectory_id="t",
        task_id="task",
        policy_version=0,
        temperature=1.0,
        arm="main",
        prompt_ids=(1, 2, 3),
        turns=(turn,),
        stop_reason=StopReason.SUBMITTED,
        reward=0.0,
        grade=None,
        messages=(),
        tools=(),
    )


TRIAL = Trial(
    task_id="task",
    prompt_tokens=3,
    trajectories=(trajectory(10), trajectory(30)),
    rollout_s=4.0,
    update_s=1.0,
    checkpoint_bytes=1000,
    trajectory_bytes=10.0,
    teachers=None,
)


def config(**more: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "run",
            "steps": 5,
            "model": {"path": "policy"},
            "tasks": {"train": "tasks"},
            "rollout": {"groups": 2, "group_size": 4},
            "eval": {"every": 2, "samples": 3},
            **more,
        }
    )


def test_the_counts_of_an_arm() -> None:
    made = make_forecast(TRIAL, config(), "main", tasks=9, held_out=2, arms=3)
    assert made.step_rollouts == 8
    assert (made.evaluations, made.eval_rollouts) == (4, 6), "before the first step, after 2 and 4, and after the last"
    assert made.rollouts == 5 * 8 + 4 * 6
    assert TRIAL.sampled_tokens == 20.0
    assert made.update_s == 4.0
    assert made.step_s == (4.0 + 4.0, 4 * 4.0 + 4.0)
    assert made.run_s == (5 * 8.0 + 4 * 4.0, 5 * 20.0 + 4 * 3 * 4.0)
    assert made.disk_bytes == (2 * 3 + 1) * 1000 + 3 * 64 * 10.0
    assert made.teachers is None
    alone = make_forecast(TRIAL, config(), "main", tasks=9, held_out=0, arms=1)
    assert (alone.evaluations, alone.rollouts) == (0, 40)


def test_a_disk_without_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = config(out=str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 3639 + 5 * (path != tmp_path)))
    made = make_forecast(TRIAL, run, "main", tasks=9, held_out=2, arms=1)
    assert made.disk_bytes == 3640.0
    with pytest.raises(ConfigError, match="GiB of disk") as raised:
        check_forecast(made, run)
    assert "set out" in (raised.value.fix or "")
    assert check_forecast(replace(made, free_bytes=3640), run) is None


def test_money_grows_with_the_traces() -> None:
    asked = ReplayPlan(states=4, teachers=(), usd=Range(low=1.0, expected=2.0, high=4.0), reasons={}, call_usd=0.5)
    prices = {"usd_per_million_input": 1.0, "usd_per_million_output": 1.0, "api_key_env": ""}
    teachers = [{"name": name, "model": name, "base_url": "http://a", **prices} for name in ("one", "other")]

    def forecast(cap: float) -> tuple[object, RunConfig]:
        run = config(teachers=teachers, loss={"replay": {"max_total_usd": cap, "traces_per_task": 2}})
        return make_forecast(replace(TRIAL, teachers=asked), run, "main", tasks=3, held_out=0, arms=1), run

    made, run = forecast(100.0)
    assert made.trace_rollouts == 6
    assert made.rollouts == 46
    assert made.teachers.usd == Range(low=3.0, expected=6.0, high=12.0)
    assert check_forecast(made, run) is None
    assert "may need up to $12.5" in str(check_forecast(*forecast(7.0)))
    with pytest.raises(BudgetExceededError):
        check_forecast(*forecast(6.0))


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.04, "0.0 s"), (0.4, "0.4 s"), (25.2, "25 s"), (720, "12 min"), (12600, "3.5 h"), (60, "1.0 min")]
)
def test_durations(seconds: float, written: str) -> None:
    assert duration(seconds) == written


def test_a_trial_asks_no_judge() -> None:
    judged = config(loss={"hint": {"generators": ["templates", "judge"]}})
    assert _without_judge(judged).loss.hint.generators == ("templates",)


@pytest.mark.slow
def test_a_trial_is_what_the_run_then_does(world: World, run_file: Path) -> None:
    """Its rollouts are those of the first step, and its checkpoint is as large as one that is written."""
    trial = wait_for(try_run(load_config(run_file), "main", Terminal()))
    assert not (run_file.parent / "runs").exists()
    finish("train", str(run_file), "--steps", "1", cwd=run_file.parent)
    run = RunDir(run_file.parent / "runs" / "run")
    first = {t.trajectory_id: t for t in run.read_trajectories("main", 1)}
    same = {t.trajectory_id: t for t in trial.trajectories if t.trajectory_id in first}
    assert all(mine.turns[0].action_ids == first[name].turns[0].action_ids for name, mine in same.items())
    (checkpoint,) = (run.ckpt_path / "main").glob("step_00001")
    written = sum((checkpoint / name).stat().st_size for name in ("model.safetensors", "learner.pt"))
    assert trial.checkpoint_bytes == pytest.approx(written, rel=0.1)
    assert trial.update_s > 0
    assert trial.rollout_s > 0
