"""Preference pairs with a judge for the actions that nothing else can compare."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from composer_replication.actions.agreement import ActionComparison, Scene
from composer_replication.actions.agreement.compare import Calls
from composer_replication.actions.calls import render_action
from composer_replication.teachers.ledger import Ledger
from composer_replication.teachers.mining.judge import judge_pairs
from composer_replication.teachers.mining.pair_mining import PairMining, find_disagreements, scene_of
from composer_replication.teachers.pool import TeacherAnswer
from composer_replication.teachers.teacher import Teacher
from composer_replication.traces import TraceState
from composer_replication.types.errors import TeacherError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A teacher who says of two actions whether they are interchangeable, and what its answers may cost."""

    teacher: Teacher
    ledger: Path
    """Keeps its answers: no two actions are paid for twice."""
    max_total_usd: float | None
    """Cap on everything that the ledger has paid or holds; None for no cap."""


async def find_judged_disagreements(
    states: Sequence[TraceState],
    answers: Sequence[TeacherAnswer],
    agreement_threshold: int = 2,
    *,
    judge: Judge | None,
    scenes: Callable[[TraceState], Scene] = scene_of,
    **options: Any,
) -> PairMining:
    """Mine pairs as `find_disagreements`, whose options these are; then ask the judge about what was left undecided, and mine
    again with its verdicts. What a sandbox has run is not run again.

    Where the judge answers nothing, or has no money left, a warning says so, and what it was to decide stays undecided.

    Raises:
        ConfigError, SandboxError: as `find_disagreements`.
    """
    find = partial(find_disagreements, states, answers, agreement_threshold, scenes=_remembering(scenes), **options)
    found = await asyncio.to_thread(find)
    if judge is None or not found.undecided:
        return found
    try:
        with Ledger(judge.ledger) as ledger:
            verdicts = await judge_pairs(found.undecided, judge.teacher, ledger=ledger, max_total_usd=judge.max_total_usd)
    except TeacherError as error:  # what needs no judge is not lost with it
        logger.warning("%d comparisons stay undecided, as the judge answers nothing: %s", len(found.undecided), error)
        return found
    return await asyncio.to_thread(find, judged=verdicts)


def _remembering(scenes: Callable[[TraceState], Scene]) -> Callable[[TraceState], Scene]:
    """Return scenes that remember what came of two actions in their sandbox."""
    known: dict[str, Scene] = {}

    def scene(state: TraceState) -> Scene:
        name = state["state_id"]
        if name not in known:
            made = scenes(state)
            known[name] = made if made.run_both is None else replace(made, run_both=_once(made.run_both))
        return known[name]

    return scene


def _once(run_both: Callable[[Calls, Calls], ActionComparison]) -> Callable[[Calls, Calls], ActionComparison]:
    known: dict[tuple[str, str], ActionComparison] = {}

    def compared(one: Calls, other: Calls) -> ActionComparison:
        key = (render_action("", one), render_action("", other))
        if key not in known:
            known[key] = run_both(one, other)
        return known[key]

    return compared
