"""Trace replay: external teachers re-answer the steps of frozen traces; where enough of them agree on an action other than the
student's, the two become a preference pair.

    teacher_actions = await replay_trace(states=states, teachers=DEFAULT_TEACHERS, max_total_usd=10.0)
    pairs = extract_dpo_pairs(states=states, teacher_actions=teacher_actions, agreement_threshold=2)

`replay_in_tiers` asks less: a gate chooses the states, and the expensive teachers are asked only where a cheap one does not
settle them. `replay_gated` does one or the other, as the options of a run file or a command line say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from composer_replication.config import GateConfig
from composer_replication.teachers import (
    Gate,
    Ledger,
    OnTier,
    Question,
    Teacher,
    TeacherAnswer,
    TeacherPool,
    TieredAnswers,
    ask_in_tiers,
    cheapest,
    read_answers,
)
from composer_replication.teachers.gate_steps import steps_of
from composer_replication.teachers.gating import GatedAnswers, gate_of, split_teachers
from composer_replication.teachers.mining.pair_mining import (
    DPOPair,
    PairMining,
    check_states,
    extract_dpo_pairs,
    find_disagreements,
    pairs_to_token_pairs,
    same_action,
)
from composer_replication.teachers.pool import answer_key
from composer_replication.traces import TraceState

__all__ = [
    "DEFAULT_TEACHERS",
    "DPOPair",
    "PairMining",
    "TraceState",
    "count_known",
    "extract_dpo_pairs",
    "find_disagreements",
    "pairs_to_token_pairs",
    "read_answers",
    "replay_gated",
    "replay_in_tiers",
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


async def replay_trace(
    states: Sequence[TraceState],
    teachers: Sequence[Teacher],
    max_total_usd: float | None,
    *,
    ledger: Ledger | Path | str | None = None,
    on_answer: Callable[[TeacherAnswer], None] | None = None,
    gate: Gate | None = None,
) -> list[TeacherAnswer]:
    """Return every teacher's answer to every state, state by state and in the order of `teachers`.

    The states of one trajectory are put to a teacher one after the other, in the order of their turns, so that each finds the
    prompt of the one before in the endpoint's cache.

    Args:
        max_total_usd: hard cap on everything the ledger has paid, earlier runs included; None for no cap.
        ledger: where answers are kept, so that a replay that is killed or repeated pays for nothing twice; None for memory only.
        on_answer: called with each answer as soon as it is there, those from the ledger first.
        gate: asks only what it lets through, the cheapest of the teachers first; see `replay_in_tiers`, which also gives the
            reasons.

    Raises:
        ConfigError: an entry is not a state, two states of one id, or teachers that cannot be asked (see `TeacherPool`).
        TeacherError: no teacher answered anything; BudgetExceededError when the cap is the reason.
    """
    if gate is not None:
        cheap = cheapest(teachers)
        dear = [t for t in teachers if t is not cheap]
        tiered = await replay_in_tiers(states, cheap, dear, max_total_usd, gate=gate, ledger=ledger, on_answer=on_answer)
        return list(tiered.answers)
    check_states(states)
    with nullcontext(ledger) if isinstance(ledger, Ledger) else Ledger(ledger) as kept:
        async with TeacherPool(teachers, ledger=kept, max_total_usd=max_total_usd) as pool:
            return await pool.ask([_question(s) for s in states], on_answer=on_answer)


async def replay_in_tiers(
    states: Sequence[TraceState],
    cheap: Teacher,
    dear: Sequence[Teacher],
    max_total_usd: float | None,
    *,
    gate: Gate,
    same: Callable[[TraceState, TeacherAnswer], bool] | None = None,
    ledger: Ledger | Path | str | None = None,
    on_answer: Callable[[TeacherAnswer], None] | None = None,
    on_tier: OnTier | None = None,
    reach: int | None = None,
) -> TieredAnswers:
    """Return the answers that `gate` wants: the cheap teacher's first, the other ones' where it does not settle the matter, and
    an audit.

    Args:
        max_total_usd: one cap for all; see `replay_trace`.
        same: whether an answer is certainly the student's action; by default `same_action`. In doubt it must say no.
        on_tier: called before each tier with its teachers and the number of states they are asked about.
        reach: how many steps after a prompt was sent the endpoints' caches find it (`Tariff.reach`); None for any number.

    Raises:
        ConfigError, TeacherError: as `replay_trace`.
    """
    check_states(states)
    by_id = {s["state_id"]: s for s in states}
    compare = same_action if same is None else same
    with nullcontext(ledger) if isinstance(ledger, Ledger) else Ledger(ledger) as kept:
        return await ask_in_tiers(
            [_question(s) for s in states],
            steps_of(states),
            cheap=cheap,
            dear=dear,
            gate=gate,
            agrees=lambda answer: compare(by_id[answer.question_id], answer),
            ledger=kept,
            max_total_usd=max_total_usd,
            on_answer=on_answer,
            on_tier=on_tier,
            reach=reach,
        )


async def replay_gated(
    states: Sequence[TraceState],
    teachers: Sequence[Teacher],
    max_total_usd: float | None,
    options: GateConfig,
    *,
    seed: int = 0,
    ledger: Ledger | Path | str | None = None,
    on_answer: Callable[[TeacherAnswer], None] | None = None,
    on_tier: OnTier | None = None,
) -> GatedAnswers:
    """Ask every teacher about every state, or those that the options of a gate choose; see `replay_trace`, `replay_in_tiers`.

    Args:
        seed: decides the draws of the gate's audit.
        on_tier: called before each tier with its teachers and the number of states they are asked about; without a gate there is
            one tier.

    Raises:
        ConfigError, TeacherError: as `replay_trace`; no teacher is called `options.cheap`.
    """
    gate = gate_of(options, seed)
    first, second = split_teachers(teachers, options)
    if gate is None:
        if on_tier is not None:
            on_tier(first, len(states))
        return GatedAnswers(await replay_trace(states, first, max_total_usd, ledger=ledger, on_answer=on_answer))
    tiered = await replay_in_tiers(
        states,
        first[0],
        second,
        max_total_usd,
        gate=gate,
        ledger=ledger,
        on_answer=on_answer,
        on_tier=on_tier,
        reach=options.reach,
    )
    return GatedAnswers(tiered.answers, tiered)


def count_known(states: Sequence[TraceState], teachers: Sequence[Teacher], ledger: Ledger) -> int:
    """Count the answers of all teachers to all states that the ledger already has."""
    questions = [_question(s) for s in states]
    return sum(ledger.find(answer_key(t, q)) is not None for t in teachers for q in questions)


def _question(state: TraceState) -> Question:
    return Question(
        question_id=state["state_id"],
        messages=state["messages"],
        tools=state.get("tools", ()),
        trace=state.get("trajectory_id", ""),
        step=state.get("turn", 0),
    )
