"""Turns to hold: what a policy does elsewhere in a trajectory must not change because one turn of it is corrected.

A gradient from error turns alone moves the other turns too, until the policy no longer gets to the error turn at all. So each
hinted turn brings another turn along that the self-teacher reads without a hint, as Learning without Forgetting does with a
former task (arXiv:1606.09282, equation 2).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence

from composer_replication.types import HintedTurn, Trajectory


def other_turns(trajectory: Trajectory, taken: Container[int], count: int, seed: int) -> list[int]:
    """Return the numbers of `count` turns that are not `taken`, drawn without replacement; fewer where there are fewer."""
    free = [number for number, turn in enumerate(trajectory.turns) if turn.action_ids and number not in taken]
    return sorted(random.Random(f"{seed}/{trajectory.trajectory_id}").sample(free, min(len(free), count)))


def hold_turns(
    trajectories: Sequence[Trajectory],
    hinted: Sequence[HintedTurn],
    *,
    per_hint: int,
    seed: int,
    errors: Iterable[tuple[str, int]] = (),
    context_window: int | None = None,
) -> Iterator[HintedTurn]:
    """Yield, for each hinted turn, `per_hint` other turns of its trajectory, drawn without replacement; fewer where there are
    fewer.

    Args:
        errors: trajectory id and number of turns that went wrong and have no hint: they are not held.
        context_window: most positions the self-teacher can attend to; a turn that ends beyond it is not held.

    Raises:
        KeyError: a hinted turn belongs to a trajectory that is not among `trajectories`.
    """
    by_id = {trajectory.trajectory_id: trajectory for trajectory in trajectories}
    hints = Counter(turn.trajectory_id for turn in hinted)
    taken: defaultdict[str, set[int]] = defaultdict(set)
    for name, number in (*((turn.trajectory_id, turn.turn) for turn in hinted), *errors):
        taken[name].add(number)
    for name, count in hints.items():
        trajectory = by_id[name]
        lengths = [trajectory.action_start(n) + len(turn.action_ids) for n, turn in enumerate(trajectory.turns)]
        beyond = {n for n, length in enumerate(lengths) if context_window is not None and length > context_window}
        for number in other_turns(trajectory, taken[name] | beyond, per_hint * count, seed):
            context, action = trajectory.context_ids(number), trajectory.turns[number].action_ids
            yield HintedTurn(
                trajectory_id=name,
                turn=number,
                student_start=len(context),
                teacher_ids=(*context, *action),
                teacher_start=len(context),
                action_ids=action,
            )
