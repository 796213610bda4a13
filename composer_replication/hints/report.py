"""Hints from trajectories, with a reason for every finding that led to none, and the control arm that shuffles them."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from composer_replication.actions.calls import Call
from composer_replication.hints.better import better_actions
from composer_replication.hints.context import HintContext
from composer_replication.hints.detectors.registry import STANDARD, Detector, detect, detectors_named, first_error
from composer_replication.hints.generators import DEFAULT_GENERATORS, HintGenerator, generators_named
from composer_replication.hints.leak import leaks_action, leaks_gold
from composer_replication.types import Finding, Hint, Trajectory
from composer_replication.types.transcript import Transcript


@dataclass(frozen=True, slots=True)
class HintReport:
    """The hints found in a batch, and what became of the other findings."""

    hints: tuple[Hint, ...]
    dropped: Mapping[str, int]
    """Number of findings without a hint, by reason; `len(hints)` plus these is the number of findings."""
    dropped_hints: tuple[Hint, ...] = ()
    """One for each of these findings, with its reason (`Hint.dropped`) and, where something would have been said, that."""


def find_hints(
    trajectories: Sequence[Transcript],
    contexts: Mapping[str, HintContext],
    *,
    max_per_trajectory: int = 1,
    gold: Mapping[str, Sequence[str]] | None = None,
    detectors: Sequence[Detector] | None = None,
    generators: Sequence[HintGenerator] | None = None,
    demo: bool = False,
) -> HintReport:
    """Find hints for the earliest error turns of each trajectory that something can be said about.

    Args:
        contexts: what hints may be made of, by task id; a task without one has its trajectory's tools only. Trajectories of the
            same task with reward 1 are added to it as siblings.
        max_per_trajectory: later errors are mostly consequences of the first, so the default is one.
        gold: the deleted code by task id; a hint that gives any of it away is dropped and counted.
        detectors: by default those of runs (`STANDARD`).
        generators: by default those of `DEFAULT_GENERATORS`. Asked in this order.
        demo: a hint may show a better action itself (`HintContext.demo`).
    """
    detectors = detectors_named(STANDARD) if detectors is None else detectors
    generators = generators_named(DEFAULT_GENERATORS) if generators is None else generators
    solved: dict[str, tuple[Transcript, ...]] = {}
    for one in trajectories:
        if one.reward == 1.0 and one.task_id:
            solved[one.task_id] = (*solved.get(one.task_id, ()), one)
    selected: list[Hint] = []
    dropped_hints: list[Hint] = []
    for trajectory in trajectories:
        context = contexts.get(trajectory.task_id, HintContext(tools=trajectory.tools))
        siblings = (*context.siblings, *solved.get(trajectory.task_id, ()))
        context = dataclasses.replace(context, siblings=siblings, demo=demo or context.demo)
        secrets = (gold or {}).get(trajectory.task_id, ())
        for _, hint in explain(
            trajectory, context, secrets, max_hints=max_per_trajectory, detectors=detectors, generators=generators
        ):
            (selected if hint.dropped is None else dropped_hints).append(hint)
    return HintReport(tuple(selected), dict(Counter(str(hint.dropped) for hint in dropped_hints)), tuple(dropped_hints))


def explain(
    trajectory: Transcript,
    context: HintContext,
    gold: Sequence[str] = (),
    *,
    max_hints: int,
    detectors: Sequence[Detector],
    generators: Sequence[HintGenerator],
) -> list[tuple[Finding, Hint]]:
    """Return a hint for every finding of one trajectory, or a dropped one with its reason."""
    written = [(one, _write(one, trajectory, context, gold, generators)) for one in detect(trajectory, detectors)]
    kept = first_error([finding for finding, hint in written if hint.dropped is None], limit=max_hints)

    def settle(finding: Finding, hint: Hint) -> Hint:
        late = hint.dropped is None and not any(finding is one for one in kept)
        return dataclasses.replace(hint, dropped="after an earlier error") if late else hint

    return [(finding, settle(finding, hint)) for finding, hint in written]


def _write(
    finding: Finding, trajectory: Transcript, context: HintContext, secrets: Sequence[str], generators: Sequence[HintGenerator]
) -> Hint:
    """Return the first generator's hint that gives nothing away; a dropped one with its reason when there is none."""
    blank = Hint(trajectory_id=trajectory.trajectory_id, turn=finding.turn, kind=finding.kind, text="", source="")
    dropped = dataclasses.replace(blank, dropped=f"nothing to say about {finding.kind}")
    better: list[Call] | None = None
    for generator in generators:
        text = generator.generate(finding, trajectory, context)
        if text is None:
            continue
        hint = dataclasses.replace(blank, text=text, source=generator.source)
        if leaks_gold(text, secrets):
            dropped = dataclasses.replace(hint, dropped="gives the deleted code away", text="")
            continue
        if better is None and not context.demo:
            better = [call for one in better_actions(trajectory, finding.turn, context) for call in one.calls]
        if better and leaks_action(text, better):
            dropped = dataclasses.replace(hint, dropped="gives the better action away")
            continue
        return hint
    return dropped


def shuffle_hints(hints: Sequence[Hint], trajectories: Sequence[Trajectory], seed: int) -> tuple[Hint, ...]:
    """Shuffle hints for the control arm: every hint keeps its place and gets the text of another task's different hint.

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
