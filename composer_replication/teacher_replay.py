"""Trace replay: outside teachers re-answer the steps of frozen traces, and where enough of them agree on another action than the
student's, the two become a preference pair.

    teacher_actions = await replay_trace(states=states, teachers=DEFAULT_TEACHERS, max_total_usd=10.0)
    pairs = extract_dpo_pairs(states=states, teacher_actions=teacher_actions, agreement_threshold=2)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from composer_replication.actions import Call, action_message, canonical_action, parse_action
from composer_replication.errors import ConfigError
from composer_replication.teachers import (
    Consensus,
    Ledger,
    Question,
    Teacher,
    TeacherAnswer,
    TeacherPool,
    Vote,
    cast_vote,
    consensus,
)
from composer_replication.tokens import ChatRenderer
from composer_replication.traces import TraceState, state_id
from composer_replication.types import Pair, Trajectory

__all__ = [
    "DEFAULT_TEACHERS",
    "DPOPair",
    "Disagreements",
    "TraceState",
    "extract_dpo_pairs",
    "find_disagreements",
    "pairs_to_token_pairs",
    "replay_trace",
]

DEFAULT_TEACHERS: tuple[Teacher, ...] = (
    Teacher(
        name="claude-opus-4.7",
        model="anthropic/claude-opus-4.7",
        family="anthropic",
        usd_per_million_input=5.0,
        usd_per_million_output=25.0,
        usd_per_million_cache_read=0.5,
        usd_per_million_cache_write=6.25,
        mark_cache=True,
    ),
    Teacher(name="gpt-5", model="openai/gpt-5", family="openai", usd_per_million_input=1.25, usd_per_million_output=10.0),
    Teacher(
        name="deepseek-v4-pro",
        model="deepseek/deepseek-v4-pro",
        family="deepseek",
        usd_per_million_input=1.74,
        usd_per_million_output=3.48,
    ),
)
"""Three families through OpenRouter, key in `OPENROUTER_API_KEY`. The prices are list prices and serve reservations; what is
booked is the cost OpenRouter reports with each answer."""


class DPOPair(TypedDict):
    """A disagreement at one state."""

    state_id: str
    state_messages: list[dict[str, Any]]
    """The conversation before the action."""
    chosen: str
    """The teachers' consensus action."""
    rejected: str
    """The student's action."""
    n_teachers_agreeing: int


async def replay_trace(
    states: Sequence[TraceState],
    teachers: Sequence[Teacher],
    max_total_usd: float | None,
    *,
    ledger: Ledger | Path | str | None = None,
    on_answer: Callable[[TeacherAnswer], None] | None = None,
) -> list[TeacherAnswer]:
    """Every teacher's answer to every state, state by state and in the order of `teachers`.

    The states of one trajectory are put to a teacher one after the other, in the order of their turns, so that each finds the
    prompt of the one before in the endpoint's cache.

    Args:
        max_total_usd: hard cap on everything the ledger has paid, earlier runs included; None for no cap.
        ledger: where answers are kept, so that a replay that is killed or repeated pays for nothing twice; None for memory only.
        on_answer: called with each answer as soon as it is there, those from the ledger first.

    Raises:
        ConfigError: two states of one id, or teachers that cannot be asked (see `TeacherPool`).
        TeacherError: no teacher answered anything; BudgetExceededError when the cap is the reason.
    """
    _check_states(states)
    with nullcontext(ledger) if isinstance(ledger, Ledger) else Ledger(ledger) as kept:
        async with TeacherPool(teachers, ledger=kept, max_total_usd=max_total_usd) as pool:
            return await pool.ask([_question(s) for s in states], on_answer=on_answer)


def _question(state: TraceState) -> Question:
    return Question(
        question_id=state["state_id"],
        messages=state["messages"],
        tools=state.get("tools", ()),
        trace=state.get("trajectory_id", ""),
        step=state.get("turn", 0),
    )


def _check_states(states: Sequence[TraceState]) -> None:
    counts = Counter(s["state_id"] for s in states)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise ConfigError(f"two states have the id {repeated[0]!r}", fix="give every state an id of its own")


@dataclass(frozen=True, slots=True)
class Disagreements:
    """The pairs of a replay, and what became of everything else."""

    pairs: tuple[DPOPair, ...]
    dropped: Mapping[str, int]
    """Number of states without a pair, by reason; `len(pairs)` plus these is the number of states."""
    abstained: Mapping[str, int]
    """Number of teacher answers that had no vote, by reason."""


def extract_dpo_pairs(
    states: Sequence[TraceState], teacher_actions: Sequence[TeacherAnswer], agreement_threshold: int = 2
) -> list[DPOPair]:
    """The pairs of `find_disagreements`, which also tells why the other states gave none."""
    return list(find_disagreements(states, teacher_actions, agreement_threshold).pairs)


def find_disagreements(
    states: Sequence[TraceState], teacher_actions: Sequence[TeacherAnswer], agreement_threshold: int = 2
) -> Disagreements:
    """One pair for every state where enough teachers agree on another action than the student's.

    `agreement_threshold` counts model families. Actions are compared in canonical form (`composer_replication.actions`), and
    only valid ones vote (`cast_vote`).

    Raises:
        ConfigError: two states of one id, or a threshold below one.
    """
    _check_states(states)
    if agreement_threshold < 1:
        raise ConfigError(f"agreement_threshold is {agreement_threshold}", fix="ask for at least one agreeing teacher")
    by_state: dict[str, list[TeacherAnswer]] = defaultdict(list)
    for answer in teacher_actions:
        by_state[answer.question_id].append(answer)
    pairs: list[DPOPair] = []
    dropped: Counter[str] = Counter()
    abstained: Counter[str] = Counter()
    for state in states:
        outcomes = [cast_vote(a, state.get("tools", ())) for a in by_state[state["state_id"]]]
        abstained.update(o for o in outcomes if isinstance(o, str))
        agreed = consensus([o for o in outcomes if isinstance(o, Vote)], threshold=agreement_threshold)
        if isinstance(agreed, str):
            dropped[agreed] += 1
        elif agreed.canonical == _student_canonical(state):
            dropped["the student agrees"] += 1
        else:
            pairs.append(_pair(state, agreed))
    return Disagreements(tuple(pairs), dict(dropped), dict(abstained))


def _student_canonical(state: TraceState) -> str:
    wire = state.get("student_tool_calls")
    if wire:
        return canonical_action("", [Call(c["function"]["name"], c["function"]["arguments"]) for c in wire])
    return canonical_action(*parse_action(state["student_action"]))


def _pair(state: TraceState, agreed: Consensus) -> DPOPair:
    return DPOPair(
        state_id=state["state_id"],
        state_messages=list(state["messages"]),
        chosen=agreed.action,
        rejected=state["student_action"],
        n_teachers_agreeing=len(agreed.teachers),
    )


def pairs_to_token_pairs(pairs: Sequence[DPOPair], trajectories: Sequence[Trajectory], renderer: ChatRenderer) -> list[Pair]:
    """Pairs at the states of our own trajectories as token ids.

    The prompt is what the policy saw at that turn and the rejected side what it sampled there, id for id. The chosen side is the
    teachers' action as the policy itself would write it: its own chat template, no teacher's prose beside a tool call.

    Raises:
        ConfigError: a pair's state is no turn of `trajectories`.
    """
    turns = {state_id(t.trajectory_id, i): (t, i) for t in trajectories for i in range(len(t.turns))}
    token_pairs: list[Pair] = []
    for pair in pairs:
        if pair["state_id"] not in turns:
            raise ConfigError(
                f"the pair's state {pair['state_id']!r} is no turn of these trajectories",
                fix="pass the trajectories whose states were replayed",
            )
        trajectory, turn = turns[pair["state_id"]]
        token_pairs.append(
            Pair(
                pair_id=pair["state_id"],
                prompt_ids=trajectory.context_ids(turn),
                chosen_ids=renderer.assistant_ids(action_message(pair["chosen"], turn=turn)),
                rejected_ids=trajectory.turns[turn].action_ids,
            )
        )
    return token_pairs
