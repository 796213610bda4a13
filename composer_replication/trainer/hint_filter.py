"""A filter of hints: a hint that does not help the self-teacher would teach the student noise.

A hint helps when, with it in its context, the self-teacher finds the action that was taken less likely, or the better action that
a sibling took in the same place more likely, than without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from composer_replication.hints import HintContext, better_actions
from composer_replication.loss.micro_batches import passes
from composer_replication.trainer.learning.learner import Learner
from composer_replication.types import Hint, HintedTurn, Trajectory, Turn

USELESS = "does not help the self-teacher"


@dataclass(frozen=True, slots=True)
class SelectedHints:
    """The hints of a batch of trajectories."""

    hinted: Sequence[HintedTurn]
    """The turns with hints, then those that are held (`HintedTurn.held`)."""
    hints: tuple[Hint, ...]
    """The hints of `hinted`."""
    dropped: tuple[Hint, ...]
    """Dropped hints, each with its reason (`Hint.dropped`)."""


def only_useful(selected: SelectedHints, trajectories: Sequence[Trajectory], learner: Learner) -> SelectedHints:
    """Drop the hints that do not help the self-teacher; their reason is `USELESS`."""
    by_id = {t.trajectory_id: t for t in trajectories}
    questions: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for turn in selected.hinted:
        trajectory = by_id[turn.trajectory_id]
        contexts = turn.teacher_ids[: turn.teacher_start], trajectory.context_ids(turn.turn)
        better = _better(trajectory, turn.turn, trajectories)
        questions += [(context, action) for action in (turn.action_ids, *better) for context in contexts]
    scores = iter(teacher_logprobs(learner, questions))
    useless = set()
    for turn in selected.hinted:
        helps = next(scores) < next(scores)
        for _ in _better(by_id[turn.trajectory_id], turn.turn, trajectories):
            helps |= next(scores) > next(scores)
        if not helps:
            useless.add((turn.trajectory_id, turn.turn))
    return SelectedHints(
        [turn for turn in selected.hinted if (turn.trajectory_id, turn.turn) not in useless],
        tuple(hint for hint in selected.hints if (hint.trajectory_id, hint.turn) not in useless),
        (
            *selected.dropped,
            *(dataclasses.replace(h, dropped=USELESS) for h in selected.hints if (h.trajectory_id, h.turn) in useless),
        ),
    )


def _better(trajectory: Trajectory, turn: int, batch: Sequence[Trajectory]) -> list[tuple[int, ...]]:
    """Return the token ids of what the first successful sibling did in the same place; none when no sibling was there."""
    siblings = tuple(one for one in batch if one.task_id == trajectory.task_id and one.passed)
    found = (one.turn for one in better_actions(trajectory, turn, HintContext(siblings=siblings)))
    return [one.action_ids for one in found if isinstance(one, Turn) and one.action_ids][:1]


def teacher_logprobs(learner: Learner, questions: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[float]:
    """Return the log-prob of each action after its context under the self-teacher: in nats, summed over the action's tokens.

    Neither context nor action may be empty.
    """
    scores = [0.0] * len(questions)
    lengths = [len(context) + len(action) for context, action in questions]
    for places in passes(lengths, learner.config.optimizer.micro_batch_tokens):
        some = [questions[place] for place in places]
        width = max(lengths[place] for place in places)
        ids, wanted, mask = (torch.zeros(len(some), width, dtype=torch.long) for _ in range(3))
        for row, (context, action) in enumerate(some):
            end = len(context) + len(action)
            ids[row, :end] = torch.tensor([*context, *action])
            mask[row, :end] = 1
            wanted[row, len(context) : end] = 1
        for place, score in zip(places, learner.teacher_logprobs(ids, mask, wanted).tolist(), strict=True):
            scores[place] = score
    return scores
