"""Turns to hold: what a policy does elsewhere in a trajectory must not change because one turn of it is corrected.

A gradient from error turns alone moves the other turns too, until the policy no longer gets to the error turn at all. So each
hinted turn brings another turn along that the self-teacher reads without a hint, as Learning without Forgetting does with a
former task (arXiv:1606.09282, equation 2).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence

from composer_replication.types import HintedTurn, Trajectory


def other_turns(trajectory: Trajectory, taken: Container[int], count: int, seed: int) -> list[int]:
    """Return the numbers of `count` turns that are not `taken`, drawn without replacement; fewer where there are fewer."""
    free = [number for number, turn in enumerate(trajectory.turns) if turn.action_ids and number not in taken]
    return sorted(random.Random(f"{seed}/{trajectory.trajectory_id}").sample(free, min(len(free), count)))


def hold_turns(
    trajectories: Sequence[Trajectory], hinted: Sequence[HintedTurn], *, per_hint: int, seed: int
) -> Iterator[HintedTurn]:
    """Yield, for each hinted turn, `per_hint` other turns of its trajectory, drawn without replacement from those that have no
    hint; fewer where there are fewer.

    Raises:
        KeyError: a hinted turn belongs to a trajectory that is not among `trajectories`.
    """
    by_id = {trajectory.trajectory_id: trajectory for trajectory in trajectories}
    taken: defaultdict[str, set[int]] = defaultdict(set)
    for turn in hinted:
        taken[turn.trajectory_id].add(turn.turn)
    for name, hints in taken.items():
        trajectory = by_id[name]
        for number in other_turns(trajectory, hints, per_hint * len(hints), seed):
            context, action = trajectory.context_ids(number), trajectory.turns[number].action_ids
            yield HintedTurn(
                trajectory_id=name,
                turn=number,
                student_start=len(context),
                teacher_ids=(*context, *action),
                teacher_start=len(context),
                action_ids=action,
            )
