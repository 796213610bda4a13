"""Replay, vote and normalise in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from composer_replication.replaysim.normalizer import DJNormalizer
from composer_replication.replaysim.records import NormalizedDPOPair
from composer_replication.teacher_replay import TraceState, extract_dpo_pairs, replay_trace
from composer_replication.teachers import Ledger, Teacher, TeacherAnswer


async def replay_and_normalize_trace(
    states: Sequence[TraceState],
    teachers: Sequence[Teacher],
    agreement_threshold: int = 2,
    max_total_usd: float | None = None,
    *,
    ledger: Ledger | Path | str | None = None,
    normalizer: DJNormalizer | None = None,
) -> tuple[list[TeacherAnswer], list[NormalizedDPOPair]]:
    """Run `replay_trace`, `extract_dpo_pairs` and `DJNormalizer.normalize` in turn; return `(teacher_actions, normalized_pairs)`.

    Args and errors are theirs; `normalizer` defaults to the default recipe.
    """
    normalizer = DJNormalizer() if normalizer is None else normalizer
    actions = await replay_trace(states=states, teachers=teachers, max_total_usd=max_total_usd, ledger=ledger)
    pairs = extract_dpo_pairs(states=states, teacher_actions=actions, agreement_threshold=agreement_threshold)
    return actions, normalizer.normalize(pairs)


def replay_and_normalize_trace_sync(
    states: Sequence[TraceState],
    teachers: Sequence[Teacher],
    agreement_threshold: int = 2,
    max_total_usd: float | None = None,
    *,
    ledger: Ledger | Path | str | None = None,
    normalizer: DJNormalizer | None = None,
) -> tuple[list[TeacherAnswer], list[NormalizedDPOPair]]:
    """Run `replay_and_normalize_trace` for callers without an event loop."""
    return asyncio.run(
        replay_and_normalize_trace(states, teachers, agreement_threshold, max_total_usd, ledger=ledger, normalizer=normalizer)
    )
