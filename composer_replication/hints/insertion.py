"""Insertion of hints, in the self-teacher's context only: a user message just before the error turn, or after the prompt."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from composer_replication.config import HintSpan
from composer_replication.tokens import ChatRenderer
from composer_replication.types import Hint, HintedTurn, Trajectory

_NO_TOKENS = "the turn sampled no tokens"
_NO_PROMPT = "the context does not end with the generation prompt"
_TOO_LONG = "longer than the context window"


@dataclass(frozen=True, slots=True)
class Insertion:
    """The result of inserting a batch of hints."""

    hinted: tuple[HintedTurn, ...]
    hints: tuple[Hint, ...]
    """Those that were inserted."""
    dropped_hints: tuple[Hint, ...] = ()
    """The hints not inserted, each with its reason (`Hint.dropped`)."""

    @property
    def dropped(self) -> Mapping[str, int]:
        """Return the number of hints not inserted, by reason; `len(hints)` plus these is the number of hints given."""
        return dict(Counter(str(hint.dropped) for hint in self.dropped_hints))


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
    before = renderer.strip_generation_prompt(trajectory.context_ids(hint.turn))
    return _aligned(trajectory, hint.turn, before, renderer.hint_ids(hint.text))


def insert_feedback(trajectory: Trajectory, texts: Iterable[str], renderer: ChatRenderer) -> Iterator[HintedTurn]:
    """Align every turn under the student's true context and under the same context with all texts in one message after the
    prompt, as self-distillation of whole responses does (SDPO, arXiv:2601.20802, section 3).

    Raises:
        ValueError: the prompt does not end with the template's generation prompt.
    """
    before = renderer.strip_generation_prompt(trajectory.prompt_ids)
    added = renderer.hint_ids("\n\n".join(dict.fromkeys(texts)))
    for number, turn in enumerate(trajectory.turns):
        if turn.action_ids:
            yield _aligned(trajectory, number, before, added)


def _aligned(trajectory: Trajectory, number: int, before: tuple[int, ...], added: tuple[int, ...]) -> HintedTurn:
    """Return a turn whose teacher's context has the ids `added` behind those `before`, with which its own context begins."""
    seen, action = trajectory.context_ids(number), trajectory.turns[number].action_ids
    context = before + added + seen[len(before) :]
    return HintedTurn(
        trajectory_id=trajectory.trajectory_id,
        turn=number,
        student_start=len(seen),
        teacher_ids=context + action,
        teacher_start=len(context),
        action_ids=action,
    )


def insert_hints(
    trajectories: Sequence[Trajectory],
    hints: Sequence[Hint],
    renderer: ChatRenderer,
    *,
    span: HintSpan = "turn",
    context_window: int | None = None,
) -> Insertion:
    """Insert every hint into its trajectory. A hint that cannot be inserted is counted under its reason, never passed over.

    Args:
        trajectories: must contain the trajectory of every hint.
        span: `turn` aligns each hint's turn (`insert_hint`); `trajectory` every turn of each trajectory that has hints
            (`insert_feedback`).
        context_window: most positions the self-teacher can attend to; None for no limit. Turns that end beyond it are not
            aligned.

    Raises:
        KeyError: a hint names a trajectory that is not among `trajectories`.
    """
    by_id = {t.trajectory_id: t for t in trajectories}
    hinted: list[HintedTurn] = []
    inserted: list[Hint] = []
    dropped: list[Hint] = []
    for together in [[hint] for hint in hints] if span == "turn" else _by_trajectory(hints):
        trajectory = by_id[together[0].trajectory_id]
        if span == "turn" and not trajectory.turns[together[0].turn].action_ids:
            dropped.append(dataclasses.replace(together[0], dropped=_NO_TOKENS))
            continue
        try:
            made = (
                [insert_hint(trajectory, together[0], renderer)] if span == "turn" else _feedback(trajectory, together, renderer)
            )
        except ValueError:
            dropped += [dataclasses.replace(hint, dropped=_NO_PROMPT) for hint in together]
            continue
        fitting = [turn for turn in made if context_window is None or len(turn.teacher_ids) <= context_window]
        hinted += fitting
        inserted += together if fitting else []
        dropped += [] if fitting else [dataclasses.replace(hint, dropped=_TOO_LONG) for hint in together]
    return Insertion(tuple(hinted), tuple(inserted), tuple(dropped))


def _feedback(trajectory: Trajectory, hints: Sequence[Hint], renderer: ChatRenderer) -> list[HintedTurn]:
    return [*insert_feedback(trajectory, [hint.text for hint in hints], renderer)]


def _by_trajectory(hints: Iterable[Hint]) -> list[list[Hint]]:
    found: defaultdict[str, list[Hint]] = defaultdict(list)
    for hint in hints:
        found[hint.trajectory_id].append(hint)
    return [*found.values()]
