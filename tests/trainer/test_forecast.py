"""What follows from a trial: rollouts, time, disk and money of an arm, and what does not fit."""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from world import World, finish

from composer_replication.config import ModelConfig, RunConfig, load_config
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import RunDir, Terminal
from composer_replication.teachers.planner import Range, ReplayPlan
from composer_replication.trainer.learning.learner import Learner
from composer_replication.trainer.learning.results import StepResult
from composer_replication.trainer.planning.forecast import check_forecast, duration, make_forecast, say_forecast
from composer_replication.trainer.planning.trial import Trial, _without_judge, try_run
from composer_replication.trainer.waiting import wait_for
from composer_replication.types import StopReason, Trajectory, Turn
from composer_replication.types.errors import BudgetExceededError, ConfigError, ModelError

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
    optimizer_s=0.25,
    updates=1,
    load_s=0.5,
    checkpoint_bytes=1000,
    weights_bytes=0,
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
    assert made.update_s == 4 * 0.75 + 0.25, "passes are as many as rollouts, and the optimizer takes a step"
    assert made.step_s == (0.5 + 4.0 + 3.25, 0.5 + 4 * 4.0 + 3.25), "weights are loaded once, however many rollouts there are"
    assert made.run_s == (5 * 7.75 + 4 * 4.0 + 0.5, 5 * 19.75 + 4 * 3 * 4.0 + 0.5)
    assert made.disk_bytes == (2 * 3 + 1) * 1000 + 3 * 64 * 10.0
    assert made.teachers is None
    alone = make_forecast(TRIAL, config(), "main", tasks=9, held_out=0, arms=1)
    assert (alone.evaluations, alone.rollouts) == (0, 40)
    assert alone.run_s[0] == 5 * 7.75
    several = make_forecast(TRIAL, config(optimizer={"mini_batches": 2, "epochs": 2}), "main", tasks=9, held_out=0, arms=1)
    assert several.update_s == 4 * 0.75 + 4 * 0.25


def test_a_servers_weights_are_on_the_disk_too() -> None:
    """Each arm's last ones, and those that replace them."""
    trial = replace(TRIAL, weights_bytes=100)
    served = {"engine": "vllm", "server_python": sys.executable}
    importance = {"rlvr": {"importance": "tis"}}

    def disk_bytes(trial: Trial, **rollout: str) -> float:
        run = config(rollout={**served, **rollout}, loss=importance)
        return make_forecast(trial, run, "main", tasks=9, held_out=2, arms=3).disk_bytes

    assert disk_bytes(trial) - disk_bytes(TRIAL) == (3 + 1) * 100
    assert disk_bytes(trial, server_weights="/elsewhere") == disk_bytes(TRIAL)


def said(run: RunConfig, trial: Trial = TRIAL) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(say_forecast(make_forecast(trial, run, "main", tasks=9, held_out=2, arms=1)))
    return console.file.getvalue()


def test_a_phase_of_fewer_rollouts_than_the_trial_takes_as_long_as_the_trial() -> None:
    """Three rollouts of an evaluation beside the eight of a trial: the slow way is never faster than the fast one."""
    eight = replace(TRIAL, trajectories=(trajectory(10), trajectory(30)) * 4)
    made = make_forecast(eight, config(eval={"every": 5, "samples": 3}), "main", tasks=9, held_out=1, arms=1)
    fast, slow = made.run_s
    assert fast == slow == 5 * 5.5 + 2 * 4.0 + 0.5


def test_the_machine_has_its_price() -> None:
    """5 steps of 7.75 s to 19.75 s, 4 evaluations of 4 s to 12 s and half a second, at $36 an hour: a cent a second."""
    assert "US dollars" not in said(config())
    assert re.search(
        r"US dollars for the machine, this arm +0\.0775 to 0\.1975 +0\.5525 to 1\.4725", said(config(usd_per_hour=36.0))
    )


def test_more_processes_try_more_rollouts() -> None:
    """Eight rollouts of a trial are a whole step of eight: nothing is scaled but the number of steps."""
    eight = replace(TRIAL, trajectories=(trajectory(10), trajectory(30)) * 4)
    made = make_forecast(eight, config(), "main", tasks=9, held_out=0, arms=1)
    assert made.step_s == (0.5 + 4.0 + 1.0,) * 2
    assert "8 rollouts" in said(config(), eight)
    assert "from all rollouts side by side to 8 at a time" in said(config(), eight)


def test_what_the_time_leaves_out_is_said() -> None:
    assert "not in the time" not in said(config())
    prices = {"usd_per_million_input": 0.0, "usd_per_million_output": 0.0, "api_key_env": ""}
    teachers = [{"name": name, "model": name, "base_url": "http://a", **prices} for name in ("one", "other")]
    run = config(teachers=teachers, rollout={"groups": 2, "group_size": 4, "refills": 3})
    assert re.search(r"not in the time: answers of teachers, and pairs made of them +once", said(run))
    assert re.search(r"not in the time: refills +up to 3", said(run))
    assert "answers of teachers" not in said(config(teachers=teachers, loss={"replay": {"weight": 0.0}}))


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
def test_a_trial_is_what_the_run_then_does(world: World, run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rollouts are those of the first step, and its checkpoint is as large as one that is written."""
    all_tasks, update, slow = ("--rollout.groups", "4"), Learner.update, [5.0]

    def cold(learner: Learner, batch: Batch) -> StepResult:
        time.sleep(slow.pop() if slow else 0.0)
        return update(learner, batch)

    monkeypatch.setattr(Learner, "update", cold)
    trial = wait_for(try_run(load_config(run_file, all_tasks), "main", Terminal()))
    assert not (run_file.parent / "runs").exists()
    finish("train", str(run_file), "--steps", "1", *all_tasks, cwd=run_file.parent)
    run = RunDir(run_file.parent / "runs" / "run")
    first = {t.trajectory_id: t for t in run.read_trajectories("main", 1)}
    same = {t.trajectory_id: t for t in trial.trajectories if t.trajectory_id in first}
    assert len(same) == len(trial.trajectories)
    assert all(mine.turns[0].action_ids == first[name].turns[0].action_ids for name, mine in same.items())
    (checkpoint,) = (run.ckpt_path / "main").glob("step_00001")
    written = sum((checkpoint / name).stat().st_size for name in ("model.safetensors", "learner.pt"))
    assert trial.checkpoint_bytes == pytest.approx(written, rel=0.1)
    assert 0 < trial.update_s < 5.0, "not that of the first update"
    assert trial.rollout_s > 0


def starts_server(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The run, over the package that speaks vLLM's wire; what the trial leaves behind is beside the run file."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "tools" / "wire_vllm"))
    monkeypatch.setattr(tempfile, "tempdir", str(run_file.parent))
    return load_config(run_file, ["--rollout.engine", "vllm", "--loss.rlvr.importance", "tis"])


@pytest.mark.slow
def test_a_trial_over_a_server_loads_weights_once_for_all_rollouts(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = wait_for(try_run(starts_server(run_file, monkeypatch), "main", Terminal()))
    assert trial.load_s > 0
    weights = load_policy(ModelConfig(path=str(load_config(run_file).model.path), device="cpu"))[0]
    assert trial.weights_bytes == pytest.approx(sum(p.nbytes for p in weights.parameters()), rel=0.5)
    assert not list(run_file.parent.glob("composer-trial-*"))


@pytest.mark.slow
def test_the_log_of_a_server_that_did_not_start_outlives_the_trial(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRE_VLLM", "broken")
    console = Console(file=io.StringIO(), width=1000)
    with pytest.raises(ModelError, match="before it served") as raised:
        wait_for(try_run(starts_server(run_file, monkeypatch), "main", Terminal(console)))
    (kept,) = [path for path in run_file.parent.glob("composer-trial-*/**/*") if path.is_file()]
    assert raised.value.fix == f"see {kept}"
    assert "no device was found" in kept.read_text()
    assert f"the server's log is kept: {kept}" in console.file.getvalue()


@pytest.mark.slow
def test_prompts_are_measured_before_a_server_is_started(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIRE_VLLM", "broken")
    run = starts_server(run_file, monkeypatch)
    run = run.model_copy(update={"rollout": run.rollout.model_copy(update={"context_tokens": 40})})
    with pytest.raises(ConfigError, match="leave no room for a turn in 40 tokens"):
        wait_for(try_run(run, "main", Terminal()))
    assert not list(run_file.parent.glob("composer-trial-*"))
