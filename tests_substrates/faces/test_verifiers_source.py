"""Training on verifiers environments: a game of TextArena, our own taskset with tools, and what cannot be trained on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from composer_replication.envs import oracle_script
from composer_replication.integrations.program_endpoint import Conversation
from composer_replication.integrations.verifiers_source import VerifiersSource
from composer_replication.rollouts import Budgets, ScriptedEngine, collect_groups
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types import Message, StopReason, ToolCall, Unscored
from composer_replication.types.errors import ConfigError, SandboxError

ROOT = Path(__file__).resolve().parents[2]
PLAYER = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
HANGMAN = {"taskset": {"id": "textarena", "game": "Hangman-v0"}, "player": PLAYER}
WORDS = ("apple", "bridge", "garden", "river", "stone")


@pytest.fixture(autouse=True, scope="module")
def words(tmp_path_factory):
    """A list of words for the game, and `uv` on the path. The game would load words from the network: no proxy answers there."""
    folder = tmp_path_factory.mktemp("nltk") / "corpora" / "words"
    folder.mkdir(parents=True)
    for name in ("README", "en", "en-basic"):
        (folder / name).write_text("\n".join(WORDS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NLTK_DATA", str(folder.parents[1]))
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def hangman(words):
    return VerifiersSource(HANGMAN, train=2, held_out=1, timeout_s=120)


def solve(env):
    """Say every word until one is right."""
    for word in WORDS:
        env.take(f"[{word}]", (), finished=True)
        if env.done:
            return


def test_a_game_is_played_to_its_end(hangman):
    assert ([t.task_id for t in hangman.train], [t.task_id for t in hangman.held_out]) == (["0", "1"], ["2"])
    env = hangman.make("0")
    system, user = env.reset()
    assert (system["role"], user["role"], env.tools) == ("system", "user", ())
    assert "Hangman" in user["content"]
    assert hangman.train[0].instruction == user["content"]
    (reply,) = env.take("[z]", (), finished=True)
    assert reply["role"] == "user"
    assert "_" in reply["content"]
    solve(env)
    assert (env.done, env.grade().reward) == (True, 1.0)


def test_an_episode_that_a_budget_ends_is_scored(hangman):
    env = hangman.make("0")
    env.reset()
    env.take("[z]", (), finished=True)
    assert not env.done
    assert env.grade().reward == 0.0
    env.reset()
    assert env.take("I think that", (), finished=False) == ()
    assert env.grade().reward == 0.0


def test_what_no_encoder_takes_is_replaced(hangman):
    env = hangman.make("1")
    env.reset()
    assert env.take("\ud800", (), finished=True)
    env.grade()


def harnesses():
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended, and may be a zombie
            if any("--base-url" in word for word in process.cmdline()):
                found.append(process)
    return found


def no_harness_is_left():
    until = time.monotonic() + 60
    while harnesses():
        assert time.monotonic() < until, "the harness still runs"
        time.sleep(0.1)


def test_a_harness_that_dies_is_no_reward(hangman):
    env = hangman.make("0")
    env.reset()
    (harness,) = harnesses()
    harness.send_signal(signal.SIGKILL)
    assert env.take("[a]", (), finished=True) == ()
    reward = env.grade().reward
    assert isinstance(reward, Unscored)
    assert "HarnessError" in reward.reason


def test_an_episode_that_nobody_holds_any_more_ends_its_harness(hangman):
    env = hangman.make("0")
    env.reset()
    assert harnesses()
    del env
    gc.collect()
    no_harness_is_left()


def rolled_out(source, script, *, timeout_s=None, **budgets):
    """Roll out the first task, the policy speaking by a script of assistant messages."""
    renderer = ChatRenderer(byte_level_tokenizer())
    given = {"turn_tokens": 9000, "trajectory_tokens": 90000, "context_tokens": 1 << 20, **budgets}
    (group,) = asyncio.run(
        collect_groups(
            ["0"],
            make_env=source.make,
            engine=ScriptedEngine(renderer, lambda _: script),
            renderer=renderer,
            budgets=Budgets(**given),
            group_size=1,
            seed=0,
            step=0,
            temperature=1.0,
            policy_version=0,
            timeout_s=timeout_s,
        )
    )
    return group.trajectories[0]


def test_a_rollout_out_of_time_ends_its_harness(hangman):
    began, kept = time.monotonic(), []

    def make(name):
        kept.append(hangman.make(name))
        return kept[-1]

    found = rolled_out(SimpleNamespace(make=make), [], timeout_s=0.5)
    assert found.stop_reason is StopReason.INFRASTRUCTURE
    assert "the rollout took longer than 0.5 s" in found.reward.reason, "wherever it was by then"
    assert time.monotonic() - began < 60, "and not env.options.timeout_s"
    no_harness_is_left()


def edits(task):
    """The solution of a task as calls of the edit tool of verifiers' harness."""
    for number, message in enumerate(oracle_script(task)[:-1]):
        given = message["tool_calls"][0]["function"]["arguments"]
        arguments = {"path": given["path"], "old_str": given["old"], "new_str": given["new"]}
        call = {"id": f"call_{number}_0", "type": "function", "function": {"name": "edit", "arguments": arguments}}
        yield Message(role="assistant", content="", tool_calls=[call])


def test_a_harness_of_tools_carries_out_the_policys_calls(folder, tasks):
    agent = {"harness": {"id": "bash"}, "runtime": {"type": "subprocess"}}
    source = VerifiersSource({"taskset": {"id": "composer_tasks", "tasks": str(folder)}, "agent": agent}, train=1)
    name = source._rows["0"].data.task_id
    script = [*edits(next(task for task in tasks if task.spec.task_id == name)), Message(role="assistant", content="I am done.")]
    solved = rolled_out(source, script)
    assert (solved.stop_reason, solved.reward) == (StopReason.SUBMITTED, 1.0)
    assert [tool["function"]["name"] for tool in solved.tools] == ["bash", "edit"]
    assert all(result.content.startswith("Edited ") for turn in solved.turns for result in turn.results)
    assert [len(turn.results) for turn in solved.turns] == [*[1] * (len(script) - 1), 0]
    assert rolled_out(source, script, max_turns=len(script)).reward == 1.0
    cut_short = rolled_out(source, script[:-1], max_turns=len(script) - 1)
    assert (cut_short.stop_reason, cut_short.reward) == (StopReason.MAX_TURNS, 1.0)
    assert rolled_out(source, [Message(role="assistant", content="I give up.")]).reward == 0.0


TASKSET = """
import verifiers.v1 as vf


class Sums(vf.Taskset):
    def load(self):
        for number in range(3):
            yield Sum(vf.TaskData(prompt=f"What is {number} + 1?", name=str(number)), self.config.task)


class Sum(vf.Task):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply == str(self.data.idx + 1))


__all__ = ["Sums"]
"""


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    """A taskset as a user writes it: an importable module."""
    folder = tmp_path_factory.mktemp("tasksets")
    (folder / "sums_of_one.py").write_text(textwrap.dedent(TASKSET))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield {"id": "sums_of_one"}


def test_a_taskset_of_the_users_own(sums):
    source = VerifiersSource({"taskset": sums, "agent": PLAYER}, train=2, held_out=1)
    assert [task.instruction for task in (*source.train, *source.held_out)] == [f"What is {n} + 1?" for n in range(3)]
    assert rolled_out(source, [Message(role="assistant", content="1")]).reward == 1.0
    assert rolled_out(source, [Message(role="assistant", content="2")]).reward == 0.0


def test_a_second_conversation_in_an_episode_is_refused(sums):
    """`best-of-n` lets the agent try several times, each from the start."""
    config = {"id": "best-of-n", "taskset": sums, "agent": PLAYER}
    found = rolled_out(VerifiersSource(config, train=1, timeout_s=120), [Message(role="assistant", content="1")])
    assert "second" in found.reward.reason


def test_what_is_wrong_with_the_options_is_said(sums):
    for options, message in (
        ({"env": {"taskset": {"id": "no_such_taskset"}}}, "no_such_taskset"),
        ({"env": {"taskset": sums, "agent": {"max_turns": "many"}}}, "max_turns"),
        ({"env": {"taskset": sums, "agent": PLAYER}, "train": 4}, "the taskset has 3 tasks"),
        ({"env": {"id": "user-sim", "taskset": sums}}, "leaves 2 agents to the policy"),
    ):
        with pytest.raises(ConfigError, match=message):
            VerifiersSource(**options)


def test_a_harness_that_neither_asks_nor_ends_is_no_reward(sums, monkeypatch):
    source = VerifiersSource({"taskset": sums, "agent": PLAYER}, train=1, timeout_s=0.01)
    with pytest.raises(SandboxError, match=r"neither asked for a turn nor ended in 0\.01 s"):
        source.make("0").reset()


def test_a_call_that_bypasses_the_harness_is_no_tool(hangman):
    assert hangman.make("0").step(ToolCall(call_id="1", name="bash", arguments={})).status == "unknown_tool"


def test_the_example_trains_three_steps_and_a_killed_run_resumes(tmp_path, resumes):
    folder = tmp_path / "example"
    shutil.copytree(ROOT / "examples" / "verifiers", folder)
    shorter = {
        "rollout.turn_tokens": 8,
        "rollout.max_turns": 2,
        "rollout.group_size": 2,
        "eval.samples": 1,
        "env.options.held_out": 1,
    }
    resumes(folder / "run.toml", *(f"--{name}={value}" for name, value in shorter.items()))


def in_conversation(work, *bodies):
    """Call `work` in a thread with a conversation in which a program asks for `bodies`, one after the other hanging up."""

    async def main():
        conversation = Conversation(asyncio.get_running_loop())
        for number, body in enumerate(bodies):
            asking = asyncio.create_task(conversation.ask(body))
            await asyncio.sleep(0)
            if number + 1 < len(bodies):
                asking.cancel()
        try:
            return await asyncio.to_thread(work, conversation, asking)
        finally:
            conversation.end()
            asking.cancel()

    return asyncio.run(main(), debug=True)


HELLO = {"role": "user", "content": "Hello."}


@pytest.mark.parametrize(
    "message",
    [
        {"content": "no role"},
        {"role": "user", "content": ["plain"]},
        {"role": "user", "content": 7},
        {"role": "assistant", "tool_calls": [{"type": "function"}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": 7}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
    ],
    ids=str,
)
def test_a_message_of_another_form_is_no_reward_and_no_end_of_the_run(message):
    with pytest.raises(SandboxError, match="no chat completion request"):
        in_conversation(lambda conversation, _: conversation.opening(5), {"messages": [HELLO, message]})


def test_a_program_that_hung_up_is_not_answered_and_may_ask_again():
    def answered(conversation, asking):
        assert conversation.opening(5) == (HELLO,)
        asking.get_loop().call_soon_threadsafe(asking.cancel)
        time.sleep(0.2)
        conversation.answer("Too late.", (), finished=True)

    with pytest.raises(SandboxError, match="hung up"):
        in_conversation(answered, {"messages": [HELLO]})
    again = in_conversation(lambda conversation, _: conversation.opening(5), {"messages": [HELLO]}, {"messages": [HELLO]})
    assert again == (HELLO,)
