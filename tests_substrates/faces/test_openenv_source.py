"""Training on OpenEnv servers: one that `openenv init` writes, one of MCP tools, and our own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from composer_replication.envs import noop_script, oracle_script
from composer_replication.integrations import openenv_source
from composer_replication.integrations.openenv_source import OpenEnvSource
from composer_replication.types import ToolCall, Unscored
from composer_replication.types.errors import ConfigError, SandboxError

ROOT = Path(__file__).resolve().parents[2]
COMPOSER = (sys.executable, "-c", "from composer_replication.cli import main; main()")
ADDER = """
from fastmcp import FastMCP
from openenv.core import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State


class Adder(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        mcp = FastMCP("adder")

        @mcp.tool
        def add(a: int, b: int) -> str:
            "Add two numbers."
            return f"the sum is {a + b}"

        super().__init__(mcp)
        self._about = State(episode_id="one", step_count=0)

    def reset(self, seed=None, episode_id=None, goal=0, **_):
        self._goal = goal
        return Observation(done=False, metadata={"note": "not for the policy"})

    async def step_async(self, action, timeout_s=None, **options):
        seen = await super().step_async(action, timeout_s=timeout_s, **options)
        if isinstance(seen, CallToolObservation) and seen.error is None:
            seen.reward, seen.done = float(sum(action.arguments.values()) == self._goal), True
        return seen

    def _step_impl(self, action, timeout_s=None, **_):
        raise ValueError("call a tool")

    @property
    def state(self):
        return self._about


app = create_app(Adder, CallToolAction, CallToolObservation, env_name="adder", max_concurrent_envs=4)
"""


@contextmanager
def served(folder, program, port="0"):
    """Start `program` with uvicorn, on a free port unless one is named."""
    command = [sys.executable, "-m", "uvicorn", program, "--port", port, "--log-level", "info"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        said = []
        while not (found := re.search(r"running on (http://\S+)", said[-1] if said else "")):
            said.append(process.stderr.readline())
            assert said[-1], "".join(said)
        process.url = found[1]
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def game(tmp_path_factory):
    """The server that `openenv init` writes, which allows one session, allowed sixteen."""
    folder = tmp_path_factory.mktemp("game")
    openenv = Path(sys.executable).with_name("openenv")
    without_uv = {**os.environ, "PATH": str(openenv.parent)}  # it would look for packages in an index
    subprocess.run([openenv, "init", "echo_game", "--output-dir", folder], check=True, capture_output=True, env=without_uv)
    program = folder / "echo_game" / "server" / "app.py"
    program.write_text(program.read_text().replace("max_concurrent_envs=1,", "max_concurrent_envs=16,"))
    return folder / "echo_game"


@pytest.fixture(scope="module")
def echo(game):
    with served(game, "server.app:app") as process:
        yield process.url


def act(name, **arguments):
    return ToolCall(call_id="1", name=name, arguments=arguments)


def test_an_action_of_one_text_is_what_the_policy_says(echo):
    source = OpenEnvSource(echo, instruction="Say it.", observe="echoed_message", train=2, held_out=1)
    assert ([task.task_id for task in source.train], [task.task_id for task in source.held_out]) == (["0", "1"], ["2"])
    env = source.make("0")
    assert env.reset() == ({"role": "system", "content": "Say it."}, {"role": "user", "content": "Echo Game environment ready!"})
    assert env.tools == ()
    assert env.say("hello") == {"role": "user", "content": "hello"}
    assert env.say("you") == {"role": "user", "content": "you"}
    assert env.grade().reward == pytest.approx(0.8)
    env.reset()
    assert env.grade().reward == 0.0, "an episode without a step"


def test_the_whole_observation_and_the_last_reward(echo):
    env = OpenEnvSource(echo, say="message", reward="last").make("0")
    env.reset()
    env.say("hello")
    assert json.loads(env.say("you")["content"]) == {"echoed_message": "you", "message_length": 3}
    assert env.grade().reward == pytest.approx(0.3)


def test_mcp_tools_are_offered_and_called(tmp_path):
    (tmp_path / "adder.py").write_text(ADDER)
    with served(tmp_path, "adder:app") as server:
        env = OpenEnvSource(server.url, reset={"goal": 5}).make("0")
        env.reset()
        (tool,) = env.tools
        assert (tool["function"]["name"], tool["function"]["description"]) == ("add", "Add two numbers.")
        assert tool["function"]["parameters"]["required"] == ["a", "b"]
        assert env.step(act("subtract")).status == "unknown_tool"
        failed = env.step(act("add", a="x", b=3))
        assert (failed.status, env.done) == ("command_failed", False)
        result = env.step(act("add", a=2, b=3))
        assert (result.status, result.content, env.done) == ("ok", "the sum is 5", True)
        assert env.grade().reward == 1.0


@pytest.fixture
def coding(folder):
    command = [*COMPOSER, "serve", "openenv", "--tasks", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        yield server.stdout.readline().split()[4].rstrip(",")
        server.terminate()


@pytest.mark.parametrize(("script", "reward"), [(oracle_script, 1.0), (lambda _: noop_script(), 0.0)])
def test_any_other_action_is_one_tool(coding, tasks, script, reward):
    env = OpenEnvSource(coding, reset={"task_id": tasks[0].spec.task_id}, observe="content").make("0")
    env.reset()
    (tool,) = env.tools
    assert set(tool["function"]["parameters"]["properties"]) == {"tool", "arguments"}
    assert env.step(act("act", arguments={})).status == "invalid_arguments"
    for message in script(tasks[0]):
        function = message["tool_calls"][0]["function"]
        env.step(act("act", tool=function["name"], arguments=dict(function["arguments"])))
    assert (env.done, env.grade().reward) == (True, reward)


def test_a_server_without_a_place_is_told_what_to_do(echo, monkeypatch):
    monkeypatch.setattr(openenv_source, "_SEAT_S", 0.5)
    source = OpenEnvSource(echo)
    envs = [source.make(str(number)) for number in range(17)]
    for env in envs[:16]:
        env.reset()
    with pytest.raises(ConfigError, match="CAPACITY_REACHED") as raised:
        envs[16].reset()
    assert "rollout.group_size" in raised.value.fix
    for env in envs[:16]:
        env.grade()
    envs[16].reset()
    envs[16].grade()


def test_a_server_that_dies_is_no_reward(game):
    with served(game, "server.app:app") as server:
        env = OpenEnvSource(server.url).make("0")
        env.reset()
        server.send_signal(signal.SIGKILL)
        server.wait()
        with pytest.raises(SandboxError, match="the OpenEnv server"):
            env.say("hello")
        with pytest.raises(SandboxError, match="the OpenEnv server"):
            env.reset()
        with pytest.raises(ConfigError, match="no OpenEnv server answers"):
            OpenEnvSource(server.url)


def test_a_session_that_is_lost_does_not_go_on_in_a_fresh_environment(game):
    """The client would open another session by itself, on which nobody called `reset`."""
    with served(game, "server.app:app") as server:
        env = OpenEnvSource(server.url).make("0")
        env.reset()
        assert env.say("hello") is not None
        server.send_signal(signal.SIGKILL)
        server.wait()
        with served(game, "server.app:app", server.url.rpartition(":")[2]), pytest.raises(SandboxError, match="session was lost"):
            env.say("hello")


def test_what_no_encoder_takes_is_replaced(echo):
    env = OpenEnvSource(echo, observe="echoed_message").make("0")
    env.reset()
    assert env.say("a \ud800 b")["content"] == "a ? b"
    env.grade()


def test_an_episode_that_ends_without_a_reward_is_unscored(echo):
    env = OpenEnvSource(echo).make("0")
    env.reset()
    env.done = True
    assert isinstance(env.grade().reward, Unscored)


def test_what_is_wrong_with_the_options_is_said(echo):
    for options, message in (
        ({"say": "words"}, "the action has message"),
        ({"observe": "words"}, "the observation has .*echoed_message"),
        ({"reward": "best"}, "env.options.reward"),
    ):
        with pytest.raises(ConfigError, match=message):
            OpenEnvSource(echo, **options)
    for url in ("127.0.0.1:8000", f"{echo}/docs"):
        with pytest.raises(ConfigError, match=r"env\.options\.url"):
            OpenEnvSource(url)


def test_the_example_trains_three_steps_and_a_killed_run_resumes(echo, tmp_path, resumes):
    folder = tmp_path / "example"
    shutil.copytree(ROOT / "examples" / "openenv", folder)
    text = (folder / "run.toml").read_text()
    assert 'url = "http://127.0.0.1:8000"' in text
    (folder / "run.toml").write_text(text.replace("http://127.0.0.1:8000", echo))
    resumes(folder / "run.toml")
