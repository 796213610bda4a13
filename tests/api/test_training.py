"""Training from Python: on another environment, with a reward and callbacks of one's own, in a running event loop, resumed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import composer_replication as composer
from composer_replication.integrations.function_env import FunctionSource
from composer_replication.trainer.train import StepCallback
from composer_replication.types import StopReason, Trajectory
from composer_replication.types.errors import ConfigError

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "function" / "run.toml"


def options(world: Any, out: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "run",
        "out": str(out),
        "steps": 2,
        "checkpoint_every": 1,
        "threads": 1,
        "model": {"path": str(world.policy), "device": "cpu"},
        "rollout": {"groups": 2, "group_size": 2, "turn_tokens": 12, "trajectory_tokens": 24, "context_tokens": 900},
        "eval": {"every": 1, "samples": 1},
        "loss": {"hint": {"weight": 0.0}, "replay": {"weight": 0.0}},
        **changes,
    }


def length(answer: str, wanted: int) -> float:
    return 1.0 if len(answer) >= wanted else 0.5


def source(count: int = 4) -> FunctionSource:
    return FunctionSource([{"prompt": f"say {i}", "wanted": 3} for i in range(count)], length, held_out_share=0.25)


class Counting(StepCallback):
    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def on_update(self, arm):
        return {"mine/version": float(arm.learner.version)}

    def on_step_end(self, arm, step, metrics):
        del arm
        self.seen.append((step, metrics["mine/version"]))


def test_a_function_as_environment_trains_and_is_read_back(world: Any, tmp_path: Path) -> None:
    counting = Counting()
    run = composer.train(options(world, tmp_path), env=source(), callbacks=[counting])
    assert counting.seen == [(1, 1.0), (2, 2.0)]
    rows = run.trajectories(arm="main", step=2)
    assert len(rows) == 4
    assert {row["reward"] for row in rows} <= {0.5, 1.0}
    assert {row["stop_reason"] for row in rows} <= {StopReason.SUBMITTED.value, StopReason.TURN_TOKENS.value}
    assert {row["task_id"] for row in run.trajectories(evaluation=True)} == {"3"}
    assert [row["mine/version"] for row in run.metrics if "mine/version" in row] == [1.0, 2.0]
    assert run.policy("main").name == "step_00002"
    assert [row.arm for row in run.summary][-1] == "main"
    again = composer.load_run(run.path)
    assert repr(again.metrics) == repr(run.metrics)
    with pytest.raises(ConfigError, match="no arm 'other'"):
        again.policy("other")
    with pytest.raises(ConfigError, match="no step 7"):
        again.trajectories(step=7)


def test_a_reward_of_ones_own_replaces_the_environments(world: Any, tmp_path: Path) -> None:
    seen: list[str] = []

    def reward(trajectory: Trajectory) -> float:
        seen.append(trajectory.trajectory_id)
        return 0.25 + 0.5 * (len(seen) % 2)

    run = composer.train(options(world, tmp_path, steps=1), env=source(), reward=reward)
    rewards = {row["reward"] for row in run.trajectories(step=1)}
    assert rewards == {0.25, 0.75}
    assert "rlvr/loss" in {name for row in run.metrics for name in row}
    assert {row["trajectory"].grade.reward for row in run.trajectories(step=1)} == rewards


def test_it_runs_in_a_notebook(world: Any, tmp_path: Path) -> None:
    async def cell() -> int:
        run = composer.train(options(world, tmp_path, steps=1), env=source())
        return len(run.trajectories(step=1))

    assert asyncio.run(cell()) == 4


def test_the_example_of_a_function_trains_three_steps_and_resumes(world: Any, tmp_path: Path) -> None:
    changes = [f"--model.path={world.policy}", "--model.device=cpu", f"--out={tmp_path}", "--threads=1", "--eval.samples=1"]
    whole = composer.train(EXAMPLE, overrides=[*changes, "--name=whole"])
    assert max(row["step"] for row in whole.metrics) == 3

    class Stop(StepCallback):
        def on_step_end(self, arm, step, metrics):
            del arm, metrics
            if step == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        composer.train(EXAMPLE, overrides=[*changes, "--name=part"], callbacks=[Stop()])
    resumed = composer.train(EXAMPLE, overrides=[*changes, "--name=part"], resume=True)
    same = [row["trajectory"].turns for row in whole.trajectories(step=3)]
    assert [row["trajectory"].turns for row in resumed.trajectories(step=3)] == same


def test_what_does_not_fit_says_so(world: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.groups is 2, but the environment has 1 tasks"):
        composer.train(options(world, tmp_path), env=source(1))
    with pytest.raises(ConfigError, match=r"tasks\.train is missing"):
        composer.train(options(world, tmp_path))
    with pytest.raises(ConfigError, match=r"curriculum\.enabled"):
        composer.train(options(world, tmp_path, env={"use": "function"}, curriculum={"enabled": True}))
    with pytest.raises(ConfigError, match=r"loss\.replay\.reattempts carries out the calls of a rollout again"):
        composer.train(options(world, tmp_path, loss={"replay": {"reattempts": 2}}), env=source())
    twice = source()
    twice.held_out = twice.train[:1]
    with pytest.raises(ConfigError, match="two tasks called '0'"):
        composer.train(options(world, tmp_path), env=twice)
    for use, said in (
        ("nothing.there:make", "cannot be imported"),
        ("gymnast", "names nothing"),
        ("json:dumps", "do not fit"),
    ):
        env = {"use": use, "options": {"odd": 1}}
        with pytest.raises(ConfigError, match=said):
            composer.train(options(world, tmp_path, env=env))
    env = {"use": "builtins:dict"}
    with pytest.raises(ConfigError, match="returned a dict"):
        composer.train(options(world, tmp_path, env=env))


def test_prompts_that_are_none_are_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": ""}) + "\n")
    with pytest.raises(ConfigError, match=r"prompt 0 of env\.options\.prompts"):
        FunctionSource(path, length)
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"prompts\.jsonl"):
        FunctionSource(path, length)
    with pytest.raises(ConfigError, match="two rows with one id"):
        FunctionSource([{"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"}], length)
