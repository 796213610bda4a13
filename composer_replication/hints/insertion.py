"""Insertion of hints: a separate user message just before the error turn, in the self-teacher's context only."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from composer_replication.tokens import ChatRenderer
from composer_replication.types import Hint, HintedTurn, Trajectory


@dataclass(frozen=True, slots=True)
class Insertion:
    """The result of inserting a batch of hints."""

    hinted: tuple[HintedTurn, ...]
    dropped: Mapping[str, int]
    """Number of hints not inserted, by reason; `len(hinted)` plus these is the number of hints given."""
    dropped_hints: tuple[Hint, ...] = ()
    """The hints not inserted, each with its reason (`Hint.dropped`)."""


def insert_hint(trajectory: Trajectory, hint: Hint, renderer: ChatRenderer) -> HintedTurn:
    """Align the error turn under the student's true context and under the same context with the hint in it.

    The self-teacher reads `context without its generation prompt + hint message + generation prompt + action`. All but the hint
    message are the trajectory's own ids, so a hint moves positions and re-tokenises nothing.

    Raises:
        ValueError: the hint belongs to another trajectory, the turn does not exist or sampled nothing, or the context before it
            does not end with the template's generation prompt.
    """
    if hint.trajectory_id != trajectory.trajectory_id:
        raise ValueError(f"hint for {hint.trajectory_id} offered to {trajectory.trajectory_id}")
    if not 0 <= hint.turn < len(trajectory.turns) or not trajectory.turns[hint.turn].action_ids:
        raise ValueError(f"{trajectory.trajectory_id} sampled nothing at turn {hint.turn}")
    seen = trajectory.context_ids(hint.turn)
    before = renderer.strip_generation_prompt(seen)
    context = before + renderer.hint_ids(hint.text) + seen[len(before) :]
    action = trajectory.turns[hint.turn].action_ids
    return HintedTurn(
        trajectory_id=trajectory.trajectory_id,
        turn=hint.turn,
        student_start=trajectory.action_start(hint.turn),
        teacher_ids=context + action,
        teacher_start=len(context),
        action_ids=action,
    )


def insert_hints(
    trajectories: Sequence[Trajectory], hints: Sequence[Hint], renderer: ChatRenderer, *, context_window: int | None = None
) -> Insertion:
    """Insert every hint into its trajectory. A hint that cannot be inserted is counted under its reason, never passed over.

    Args:
        trajectories: must contain the trajectory of every hint.
        context_window: most positions the self-teacher can attend to; None for no limit.

    Raises:
        KeyError: a hint names a trajectory that is not among `trajectories`.
    """
    by_id = {t.trajectory_id: t for t in trajectories}
    hinted: list[HintedTurn] = []
    dropped_hints: list[Hint] = []
    for hint in hints:
        placed = _place(by_id[hint.trajectory_id], hint, renderer, context_window)
        if isinstance(placed, HintedTurn):
            hinted.append(placed)
        else:
            dropped_hints.append(dataclasses.replace(hint, dropped=placed))
    return Insertion(tuple(hinted), dict(Counter(str(hint.dropped) for hint in dropped_hints)), tuple(dropped_hints))


def _place(trajectory: Trajectory, hint: Hint, renderer: ChatRenderer, context_window: int | None) -> HintedTurn | str:
    """Return the aligned turn, or the reason why there is none."""
    if not trajectory.turns[hint.turn].action_ids:
        return "the turn sampled no tokens"
    try:
        aligned = insert_hint(trajectory, hint, renderer)
    except ValueError:
        return "the context does not end with the generation prompt"
    if context_window is not None and len(aligned.teacher_ids) > context_window:
        return "longer than the context window"
    return aligned
