"""An environment that answers words: a turn without a tool call is a turn, and not the end."""

from __future__ import annotations

import asyncio

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
