"""The Gymnasium face, checked by Gymnasium's own checker and played."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from composer_replication.envs import CodingEnv, oracle_script
from composer_replication.envs.tools import TOOLSETS
from composer_replication.integrations.gymnasium_source import GymnasiumSource
from composer_replication.types import GradeReport, Unscored
from composer_replication.types.errors import ConfigError, SandboxError

ROOT = Path(__file__).resolve().parents[2]
MAP = {"make": {"render_mode": "ansi", "is_slippery": False}}
ID = "composer_replication.integrations.gymnasium:CodingTasks-v0"


@pytest.fixture
def env(folder):
    made = gymnasium.make(ID, folder=str(folder))
    yield made
    made.close()


def play(env, script):
    """The rewards of a script, and the last step."""
    rewards = []
    for message in script:
        function = message["tool_calls"][0]["function"]
        last = env.step({"tool": function["name"], "arguments": json.dumps(function["arguments"])})
        rewards.append(last[1])
    return rewards, last


def test_its_own_checker_finds_nothing(env):
    check_env(env.unwrapped)


def test_the_solution_earns_one_and_doing_nothing_nothing(env, tasks):
    for task in tasks:
        script = oracle_script(task)
        observation, info = env.reset(options={"task_id": task.spec.task_id})
        assert observation == {"status": "ok", "content": task.spec.instruction}
        assert info["task_id"] == task.spec.task_id
        rewards, (observation, _, terminated, truncated, info) = play(env, script)
        assert rewards == [*[0.0] * (len(script) - 1), 1.0]
        assert (terminated, truncated, info["reasons"]) == (True, False, [])
        env.reset(options={"task_id": task.spec.task_id})
        rewards, (_, _, terminated, _, info) = play(env, script[-1:])
        assert (rewards, terminated) == ([0.0], True)
        assert info["reasons"]


def test_the_documented_example_runs(documented, folder, capsys):
    exec(documented("Gymnasium"), {"DIR": folder})
    assert "fail-to-pass tests did not pass" in capsys.readouterr().out


def test_the_seed_chooses_the_task(env, tasks):
    drawn = [[env.reset(seed=seed)[1]["task_id"], *(env.reset()[1]["task_id"] for _ in range(3))] for seed in range(12)]
    again = [[env.reset(seed=seed)[1]["task_id"], *(env.reset()[1]["task_id"] for _ in range(3))] for seed in range(12)]
    assert drawn == again
    assert {row[0] for row in drawn} == {task.spec.task_id for task in tasks}


def test_bad_actions_are_observations_and_an_unknown_task_an_error(env):
    env.reset(seed=0)
    for action, status in (
        ({"tool": "read_file", "arguments": "{"}, "malformed_call"),
        ({"tool": "read_file", "arguments": "[]"}, "malformed_call"),
        ({"tool": "no_such_tool", "arguments": "{}"}, "unknown_tool"),
        ({"tool": "read_file", "arguments": "{}"}, "invalid_arguments"),
    ):
        observation, reward, terminated, _, _ = env.step(action)
        assert (observation["status"], reward, terminated) == (status, 0.0, False)
    with pytest.raises(ConfigError, match="there is no task x"):
        env.reset(options={"task_id": "x"})


def test_the_shell_is_offered_and_its_bad_calls_are_observations(folder):
    env = gymnasium.make(ID, folder=str(folder), toolset="shell")
    _, info = env.reset(seed=0)
    assert info["tools"] == list(TOOLSETS["shell"])
    for tool, arguments, status in (
        ("bash", json.dumps({"command": "echo a\0b"}), "invalid_arguments"),
        ("bash", json.dumps({"command": "echo " + 200_000 * "a"}), "invalid_arguments"),
        ("bash", json.dumps({"command": "echo \ud800"}), "malformed_call"),
        ("read_file", '{"path": ' + 900 * "[" + 900 * "]" + "}", "invalid_arguments"),
        ("no \ud800 tool", "{}", "unknown_tool"),
        ("bash", json.dumps({"command": "echo fine"}), "ok"),
    ):
        observation, _, terminated, _, _ = env.step({"tool": tool, "arguments": arguments})
        assert (observation["status"], terminated) == (status, False), tool
        assert observation["content"].encode()
    env.close()


def test_the_alarm_of_an_impossible_task_is_in_info(env, monkeypatch):
    monkeypatch.setattr(
        CodingEnv, "grade", lambda _: GradeReport(reward=0.0, outcomes={}, reasons=("ALARM",), alarms=("a forged verdict",))
    )
    env.reset(seed=0)
    _, reward, _, _, info = env.step({"tool": "submit", "arguments": "{}"})
    assert (reward, info["reasons"], info["alarms"]) == (0.0, ["ALARM"], ["a forged verdict"])


def test_a_broken_box_is_an_error_and_no_reward(env, monkeypatch):
    monkeypatch.setattr(CodingEnv, "grade", lambda _: GradeReport(reward=Unscored("the box broke"), outcomes={}))
    env.reset(seed=0)
    with pytest.raises(SandboxError, match="the box broke"):
        env.step({"tool": "submit", "arguments": "{}"})


# --- Gymnasium's own games as environments to train on


def lake(**changes):
    return GymnasiumSource("FrozenLake-v1", **{"actions": ["left", "down", "right", "up"], "observe": "render", **MAP, **changes})


def test_a_game_of_gymnasiums_is_played_in_words():
    env = lake(train=2, held_out=1).make("0")
    opening = env.reset()
    assert [m["role"] for m in opening] == ["user"]
    assert "SFFF" in opening[0]["content"].replace("\x1b[41m", "").replace("\x1b[0m", "")
    assert "left, down, right, up" in env.say("jump")["content"]
    moves = ["down", "down", "right", "right", "down"]
    assert all(env.say(move) is not None for move in moves)
    assert env.say("Right.") is None
    assert env.done
    assert env.grade().reward == 1.0


def test_a_hole_ends_the_game_with_nothing():
    env = lake().make("1")
    env.reset()
    assert env.say("right") is not None
    assert env.say("down") is None
    assert env.grade().reward == 0.0
    env.reset()
    assert env.grade().reward == 0.0, "an episode without a move"


def test_what_is_wrong_with_a_game_is_said():
    with pytest.raises(ConfigError, match="NoSuchLake"):
        GymnasiumSource("NoSuchLake-v0")
    with pytest.raises(ConfigError, match="has 1 names"):
        lake(actions=["left"])
    with pytest.raises(ConfigError, match="cannot be said in a word"):
        GymnasiumSource("Pendulum-v1")


def test_the_example_trains_three_steps_and_a_killed_run_resumes(resumes):
    resumes(ROOT / "examples" / "gymnasium" / "run.toml")
