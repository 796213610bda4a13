"""Conversations of any agent as trajectories in one policy's tokens, to learn from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from composer_replication.tokens import ChatRenderer, assistant_message
from composer_replication.traces.own import trace_from_trajectory
from composer_replication.traces.recorder import INCOMPLETE
from composer_replication.types import Message, StopReason, Trajectory, Turn, Unscored
from composer_replication.types.transcript import Trace, TraceTurn

UNKNOWN_OUTCOME = Unscored("the log does not say")
"""The reward of a conversation whose log says nothing of how it ended. That of a rollout which could not be graded says why."""


def in_tokens_of(renderer: ChatRenderer, transcript: Trajectory | Trace) -> list[Trajectory]:
    """Return a conversation in a policy's tokens: itself where it is in them already, else rendered anew by the chat template.

    A foreign agent's context may be rewritten between two turns: each stretch that continues is a trajectory by itself. A turn
    whose context is incomplete in the log is read and not learned from: its ids are part of what follows it. Log-probs are 0:
    nobody sampled these tokens from this policy.
    """
    if isinstance(transcript, Trajectory):
        if renderer.prompt_ids(transcript.messages, transcript.tools) == transcript.prompt_ids:
            return [transcript]
        return [replace(part, grade=transcript.grade) for part in _parts(renderer, trace_from_trajectory(transcript))]
    return _parts(renderer, transcript)


def _parts(renderer: ChatRenderer, trace: Trace) -> list[Trajectory]:
    return [
        _trajectory(trace, number, renderer, stretch)
        for number, stretch in enumerate(_stretches(trace))
        if any(INCOMPLETE not in turn.details for turn, _ in stretch)
    ]


def reply_between(before: TraceTurn, after: TraceTurn) -> Sequence[Message] | None:
    """Return what came between two turns; None where the context does not continue the one before and the turn's own message."""
    seen = len(before.context)
    goes_on = after.context[:seen] == before.context and len(after.context) > seen + 1
    return after.context[seen + 1 :] if goes_on and after.context[seen]["role"] == "assistant" else None


def _stretches(trace: Trace) -> Iterator[list[tuple[TraceTurn, Sequence[Message]]]]:
    """Yield turns whose contexts continue each other, each with what came before it in the stretch."""
    stretch: list[tuple[TraceTurn, Sequence[Message]]] = []
    for turn in trace.turns:
        reply = reply_between(stretch[-1][0], turn) if stretch else None
        if stretch and reply is None:
            yield stretch
            stretch = []
        stretch.append((turn, reply or ()))
    if stretch:
        yield stretch


def _trajectory(
    trace: Trace, number: int, renderer: ChatRenderer, stretch: Sequence[tuple[TraceTurn, Sequence[Message]]]
) -> Trajectory:
    context = stretch[0][0].context
    prompt = list(renderer.prompt_ids(context, trace.tools))
    turns: list[Turn] = []
    for index, (turn, _) in enumerate(stretch):
        said = renderer.assistant_ids(assistant_message(turn.text, turn.tool_calls))
        following = stretch[index + 1][1] if index + 1 < len(stretch) else None
        read = () if following is None else renderer.delta_ids(following, ended=True)
        if INCOMPLETE in turn.details:
            if turns:
                last = turns.pop()
                turns.append(_turn(last.action_ids, (*last.observation_ids, *said, *read), last))
            else:
                prompt += (*said, *read)
            continue
        turns.append(_turn(said, read, turn))
    return Trajectory(
        trajectory_id=f"{trace.trajectory_id}#{number}" if number else trace.trajectory_id,
        task_id=trace.task_id or trace.trajectory_id,
        policy_version=0,
        messages=tuple(context),
        tools=trace.tools,
        prompt_ids=tuple(prompt),
        turns=tuple(turns),
        stop_reason=StopReason.SUBMITTED,
        temperature=1.0,
        reward=UNKNOWN_OUTCOME if trace.reward is None else trace.reward,
    )


def _turn(action_ids: Sequence[int], observation_ids: Sequence[int], of: TraceTurn | Turn) -> Turn:
    return Turn(
        action_ids=tuple(action_ids),
        logprobs=(0.0,) * len(action_ids),
        text=of.text,
        tool_calls=of.tool_calls,
        results=of.results,
        observation_ids=tuple(observation_ids),
    )
