"""Conversations of any agent in one policy's tokens."""

from __future__ import annotations

from dataclasses import replace

from composer_replication.tokens import ChatRenderer, assistant_message, byte_level_tokenizer
from composer_replication.traces.own import trace_from_trajectory
from composer_replication.traces.recorder import INCOMPLETE
from composer_replication.traces.segments import UNKNOWN_OUTCOME, in_tokens_of
from composer_replication.types import Message, StopReason, ToolCall, ToolResult, Trajectory, Turn, Unscored
from composer_replication.types.transcript import Trace, TraceTurn

RENDERER = ChatRenderer(byte_level_tokenizer())
OPENING = (Message(role="system", content="You fix code."), Message(role="user", content="Make the tests pass."))
LOOK, FIX = ToolCall(call_id="c0", name="search", arguments={"pattern": "x"}), ToolCall(call_id="c1", name="submit", arguments={})
FOUND = "src/x.py:1: x"


def own(reward: float = 1.0) -> Trajectory:
    """Two turns as a rollout holds them."""
    said = [RENDERER.assistant_ids(assistant_message(text, (call,))) for text, call in (("I look.", LOOK), ("Done.", FIX))]
    reply = RENDERER.delta_ids([Message(role="tool", content=FOUND, tool_call_id="c0", name="search")], ended=True)
    return Trajectory(
        trajectory_id="1/t/0",
        task_id="t",
        policy_version=3,
        messages=OPENING,
        tools=(),
        prompt_ids=RENDERER.prompt_ids(OPENING),
        turns=(
            Turn(
                action_ids=said[0],
                logprobs=(-0.5,) * len(said[0]),
                text=RENDERER.decode(said[0]),
                tool_calls=(LOOK,),
                results=(ToolResult(call_id="c0", name="search", content=FOUND),),
                observation_ids=reply,
            ),
            Turn(action_ids=said[1], logprobs=(-0.5,) * len(said[1]), text=RENDERER.decode(said[1]), tool_calls=(FIX,)),
        ),
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=reward,
    )


def ids(trajectory: Trajectory) -> tuple[int, ...]:
    return trajectory.context_ids(len(trajectory.turns))


def test_a_rollout_in_the_same_tokens_is_taken_as_it_is() -> None:
    assert in_tokens_of(RENDERER, own()) == [own()]


def test_a_rollout_of_another_tokenizer_is_rendered_anew() -> None:
    theirs = replace(
        own(), prompt_ids=(1, 2, 3), turns=tuple(replace(turn, action_ids=(7, 8), logprobs=(0.0, 0.0)) for turn in own().turns)
    )
    (found,) = in_tokens_of(RENDERER, theirs)
    assert ids(found) == ids(own())
    assert [turn.action_ids for turn in found.turns] == [turn.action_ids for turn in own().turns]
    assert found.reward == 1.0


def test_a_trace_is_what_the_template_makes_of_the_whole_conversation() -> None:
    trace = trace_from_trajectory(own())
    (found,) = in_tokens_of(RENDERER, trace)
    assert ids(found) == ids(own())
    last = trace.turns[-1]
    whole = [*last.context, assistant_message(last.text, last.tool_calls)]
    assert RENDERER.template.ids(whole)[: len(ids(found))] == ids(found)


def test_a_rewritten_context_begins_another_trajectory() -> None:
    trace = trace_from_trajectory(own())
    summary = (*OPENING, Message(role="user", content="So far: x is in src/x.py."))
    rewritten = replace(trace, turns=(trace.turns[0], replace(trace.turns[1], context=summary)))
    first, second = in_tokens_of(RENDERER, rewritten)
    assert (first.trajectory_id, second.trajectory_id) == ("1/t/0", "1/t/0#1")
    assert first.turns[0].observation_ids == ()
    assert second.prompt_ids == RENDERER.prompt_ids(summary)
    assert [turn.action_ids for turn in second.turns] == [own().turns[1].action_ids]


def test_a_turn_with_an_incomplete_context_is_read_and_not_learned_from() -> None:
    trace = trace_from_trajectory(own())

    def without(*numbers: int) -> Trace:
        turns = (replace(t, details={INCOMPLETE: "cut"}) if n in numbers else t for n, t in enumerate(trace.turns))
        return replace(trace, turns=tuple(turns))

    (second_only,) = in_tokens_of(RENDERER, without(0))
    assert ids(second_only) == ids(own())
    assert [turn.action_ids for turn in second_only.turns] == [own().turns[1].action_ids]
    assert second_only.action_start(0) == own().action_start(1)
    (first_only,) = in_tokens_of(RENDERER, without(1))
    assert ids(first_only) == ids(own())
    assert [turn.action_ids for turn in first_only.turns] == [own().turns[0].action_ids]
    assert in_tokens_of(RENDERER, without(0, 1)) == []


def test_a_log_that_says_nothing_of_the_outcome_stays_unscored() -> None:
    turn = TraceTurn(context=OPENING, text="Done.")
    (found,) = in_tokens_of(RENDERER, Trace(trajectory_id="a", format="x", turns=(turn,)))
    assert found.reward == UNKNOWN_OUTCOME
    assert found.task_id == "a"


def test_a_rollout_that_could_not_be_graded_says_so_in_other_tokens_too() -> None:
    broken = replace(own(), prompt_ids=(1, 2, 3), reward=Unscored("the box broke"))
    (found,) = in_tokens_of(RENDERER, broken)
    assert found.prompt_ids == own().prompt_ids
    assert found.reward == broken.reward != UNKNOWN_OUTCOME
