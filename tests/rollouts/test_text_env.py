"""Environments that answer words, and those whose calls another program carries out."""

from __future__ import annotations

import asyncio
import json

from composer_replication.rollouts import Budgets, ScriptedEngine, collect_groups
from composer_replication.tokens import ChatRenderer, byte_level_tokenizer
from composer_replication.types import GradeReport, Message, StopReason, ToolCall, ToolResult
from composer_replication.types.errors import SandboxError


class Greeting:
    """Wants to be greeted three times, and answers in between."""

    tools = ()
    task_id = "greet"
    done = False

    def __init__(self) -> None:
        self.heard: list[str] = []

    def reset(self) -> tuple[Message, ...]:
        self.heard = []
        return (Message(role="user", content="Greet me."),)

    def step(self, call: ToolCall) -> ToolResult:
        return ToolResult(call_id=call.call_id, name=call.name, content="no tools here", status="unknown_tool")

    def say(self, text: str) -> Message | None:
        if text == "break":
            raise SandboxError("the game broke", fix="play again")
        self.heard.append(text)
        return Message(role="user", content=f"Again, after {text}.") if len(self.heard) < 3 else None

    def grade(self) -> GradeReport:
        return GradeReport(reward=len(self.heard) / 3, outcomes={})


def rolled_out(env, *words: str, **budgets: int):
    renderer = ChatRenderer(byte_level_tokenizer())
    engine = ScriptedEngine(renderer, lambda _: [Message(role="assistant", content=word) for word in words])
    given = Budgets(**{"turn_tokens": 4000, "trajectory_tokens": 9000, "context_tokens": 1 << 20, **budgets})
    (group,) = asyncio.run(
        collect_groups(
            ["greet"],
            make_env=lambda _: env,
            engine=engine,
            renderer=renderer,
            budgets=given,
            group_size=1,
            seed=0,
            step=0,
            temperature=1.0,
            policy_version=0,
        )
    )
    return group.trajectories[0], renderer


def test_words_are_answered_until_the_episode_is_over() -> None:
    env = Greeting()
    found, renderer = rolled_out(env, "hello", "hi", "welcome", "never said")
    assert env.heard == ["hello", "hi", "welcome"]
    assert (found.stop_reason, found.reward, len(found.turns)) == (StopReason.SUBMITTED, 1.0, 3)
    assert "Again, after hello." in renderer.decode(found.turns[0].observation_ids)
    assert found.turns[2].observation_ids == ()


def test_what_is_cut_off_is_heard_and_not_answered() -> None:
    env = Greeting()
    found, _ = rolled_out(env, "hello", turn_tokens=3)
    assert (found.stop_reason, len(found.turns)) == (StopReason.TURN_TOKENS, 1)
    assert len(env.heard) == 1
    assert "hello".startswith(env.heard[0])
    assert found.turns[0].observation_ids == ()


def test_an_environment_that_breaks_is_unscored() -> None:
    found, _ = rolled_out(Greeting(), "hello", "break")
    assert found.stop_reason is StopReason.INFRASTRUCTURE
    assert found.reward.reason == "the game broke"


def test_an_environment_of_tools_takes_words_for_the_end() -> None:
    class Tools:
        """A `Greeting` that has no `say` at all."""

        tools, task_id, done = (), "greet", False

        def reset(self):
            return (Message(role="user", content="Greet me."),)

        def step(self, call):
            raise AssertionError(call)

        def grade(self):
            return GradeReport(reward=0.0, outcomes={})

    found, _ = rolled_out(Tools(), "hello", "again")
    assert (found.stop_reason, len(found.turns)) == (StopReason.NO_TOOL_CALL, 1)


def test_the_reward_of_the_run_has_the_last_word() -> None:
    share = 0.5
    renderer = ChatRenderer(byte_level_tokenizer())
    engine = ScriptedEngine(renderer, lambda _: [Message(role="assistant", content="hello")] * 3)
    (group,) = asyncio.run(
        collect_groups(
            ["greet"], make_env=lambda _: Greeting(), engine=engine, renderer=renderer, budgets=Budgets(), group_size=2,
            seed=0, step=0, temperature=1.0, policy_version=0, reward=lambda one: share * len(one.turns),
        )
    )  # fmt: skip
    assert [t.reward for t in group.trajectories] == [3 * share] * 2
    assert [t.grade.reward for t in group.trajectories] == [3 * share] * 2


class Program:
    """Carries out calls by itself: adds numbers until it is told that it is over."""

    tools = ({"type": "function", "function": {"name": "add", "description": "", "parameters": {}}},)
    task_id = "sum"

    def __init__(self) -> None:
        self.done = False
        self.taken: list[tuple[str, list[str], bool]] = []

    def reset(self) -> tuple[Message, ...]:
        return (Message(role="user", content="Add."),)

    def step(self, call: ToolCall) -> ToolResult:
        raise AssertionError(call)

    def take(self, text: str, calls: tuple[ToolCall, ...], *, finished: bool) -> tuple[Message, ...]:
        self.taken.append((text, [call.name for call in calls], finished))
        if text == "break":
            raise SandboxError("the program died", fix="start it again")
        if not finished or not calls:
            self.done = True
            return ()
        results = [Message(role="tool", content=str(sum(c.arguments.values())), tool_call_id=c.call_id) for c in calls]
        return (*results, Message(role="user", content="Go on."))

    def grade(self) -> GradeReport:
        return GradeReport(reward=float(len(self.taken)), outcomes={})


def call(text: str = "", **arguments: int) -> str:
    return f'{text}<tool_call>\n{{"name": "add", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def test_a_program_takes_whole_turns_and_its_replies_are_observed() -> None:
    env = Program()
    found, renderer = rolled_out(env, call("Two sums.", a=1, b=2) + call(c=4), "that is all", "never said")
    assert env.taken == [("Two sums.", ["add", "add"], True), ("that is all", [], True)]
    assert (found.stop_reason, found.reward, len(found.turns)) == (StopReason.SUBMITTED, 2.0, 2)
    assert [(r.call_id, r.name, r.content, r.status) for r in found.turns[0].results] == [
        ("call_0_0", "add", "3", "ok"),
        ("call_0_1", "add", "4", "ok"),
    ]
    seen = renderer.decode(found.turns[0].observation_ids)
    assert seen.index("3") < seen.index("4") < seen.index("Go on.")


def test_a_program_is_given_a_call_that_no_parser_takes_as_text() -> None:
    env = Program()
    rolled_out(env, "<tool_call>\nadd 1 and 2\n</tool_call>")
    assert env.taken == [("<tool_call>\nadd 1 and 2\n</tool_call>", [], True)]


def test_a_program_takes_what_was_cut_off() -> None:
    env = Program()
    found, _ = rolled_out(env, "hello", turn_tokens=3)
    assert (found.stop_reason, found.reward) == (StopReason.TURN_TOKENS, 1.0)
    assert [taken[1:] for taken in env.taken] == [([], False)]


def test_a_program_that_breaks_is_unscored() -> None:
    found, _ = rolled_out(Program(), call(a=1), "break")
    assert (found.stop_reason, found.reward.reason) == (StopReason.INFRASTRUCTURE, "the program died")
