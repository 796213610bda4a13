"""From trajectories to hints, with an account of every finding that led to none; and the control arm that shuffles them."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from composer_replication.hints.detectors import BUILTIN_DETECTORS, Detector, detect, first_error
from composer_replication.hints.generators import BUILTIN_GENERATORS, HintContext, HintGenerator
from composer_replication.hints.leak import leaks_gold
from composer_replication.types import Finding, Hint, Trajectory

__all__ = ["HintReport", "find_hints", "shuffle_hints"]


@dataclass(frozen=True, slots=True)
class HintReport:
    """The hints found in a batch, and what became of the other findings."""

    hints: tuple[Hint, ...]
    dropped: Mapping[str, int]
    """Number of findings without a hint, by reason; `len(hints)` plus these is the number of findings."""


def find_hints(
    trajectories: Sequence[Trajectory],
    contexts: Mapping[str, HintContext],
    *,
    max_per_trajectory: int = 1,
    gold: Mapping[str, Sequence[str]] | None = None,
    detectors: Sequence[Detector] = BUILTIN_DETECTORS,
    generators: Sequence[HintGenerator] = BUILTIN_GENERATORS,
) -> HintReport:
    """Hints for the earliest error turns of each trajectory that something can be said about.

    Args:
        contexts: what hints may be made of, by task id; a task without one has its trajectory's tools only.
        max_per_trajectory: later errors are mostly consequences of the first, so the default is one.
        gold: the deleted code by task id; a hint that gives any of it away is dropped and counted.
    """
    hints: list[Hint] = []
    dropped: Counter[str] = Counter()
    for trajectory in trajectories:
        context = contexts.get(trajectory.task_id, HintContext(tools=trajectory.tools))
        secrets = (gold or {}).get(trajectory.task_id, ())
        candidates: list[tuple[Finding, Hint]] = []
        for finding in detect(trajectory, detectors):
            outcome = _write(finding, trajectory, context, secrets, generators)
            if isinstance(outcome, Hint):
                candidates.append((finding, outcome))
            else:
                dropped[outcome] += 1
        kept = first_error([finding for finding, _ in candidates], limit=max_per_trajectory)
        hints.extend(hint for finding, hint in candidates if any(finding is k for k in kept))
        dropped["after an earlier error"] += len(candidates) - len(kept)
    return HintReport(tuple(hints), {reason: count for reason, count in dropped.items() if count})


def _write(
    finding: Finding, trajectory: Trajectory, context: HintContext, secrets: Sequence[str], generators: Sequence[HintGenerator]
) -> Hint | str:
    """The first generator's hint that gives nothing away, or the reason why there is none."""
    reason = f"nothing to say about {finding.kind}"
    for generator in generators:
        text = generator.generate(finding, trajectory, context)
        if text is None:
            continue
        if leaks_gold(text, secrets):
            reason = "gives the deleted code away"
            continue
        return Hint(
            trajectory_id=trajectory.trajectory_id, turn=finding.turn, kind=finding.kind, text=text, source=generator.source
        )
    return reason


def shuffle_hints(hints: Sequence[Hint], trajectories: Sequence[Trajectory], seed: int) -> tuple[Hint, ...]:
    """The control arm: every hint keeps its place and gets the text of another task's hint that says something else.

    Tasks often share a fault and so its hint: another task alone would leave many hints right. A hint for which there is no other
    text is left out.

    Raises:
        KeyError: a hint names a trajectory that is not among `trajectories`.
    """
    task_of = {t.trajectory_id: t.task_id for t in trajectories}
    rng = random.Random(seed)
    shuffled: list[Hint] = []
    for hint in hints:
        task = task_of[hint.trajectory_id]
        donors = [h for h in hints if h.text != hint.text and task_of[h.trajectory_id] != task]
        if donors:
            gift = rng.choice(donors)
            shuffled.append(dataclasses.replace(hint, text=gift.text, kind=gift.kind, source=gift.source))
    return tuple(shuffled)
