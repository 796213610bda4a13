"""The turns that the replay channel holds, and the pairs of each step.

A gradient from pairs alone moves the other turns of a trajectory too, until the policy no longer reaches the turn that the pair
is about. So each pair brings another turn of its trajectory along, to be imitated as it was taken.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence

from composer_replication.config import RunConfig
from composer_replication.hints import other_turns
from composer_replication.traces.states import place_of, state_id
from composer_replication.types import Pair, Trajectory, Turn


def turns_to_hold(
    pairs: Sequence[Pair], trajectories: Sequence[Trajectory], config: RunConfig, disputed: Container[str] = ()
) -> Iterator[Pair]:
    """Yield `loss.replay.held_turns` other turns of its trajectory for each pair, drawn with the run's seed: the action that was
    taken there, with the mean confidence of the trajectory's pairs. Turns with a pair, in `disputed`, or with a call that failed
    are not held.

    Where the starting policy sampled the trajectory, at temperature 1, the negative log-likelihood of these actions estimates
    KL(starting policy || policy) plus a constant, without bias.

    Args:
        disputed: ids of states at which teachers agreed on another action, with a pair or without.
    """
    if config.loss.replay.variant != "sft":
        return
    by_id = {trajectory.trajectory_id: trajectory for trajectory in trajectories}
    found: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for pair in pairs:
        name, place = place_of(pair.pair_id)
        found[name][place] = pair.confidence
    for name, known in found.items():
        trajectory = by_id[name]
        wrong = {n for n, turn in enumerate(trajectory.turns) if _failed(turn) or state_id(name, n) in disputed}
        for turn in other_turns(trajectory, wrong | known.keys(), config.loss.replay.held_turns * len(known), config.seed):
            yield Pair(
                pair_id=state_id(name, turn),
                prompt_ids=trajectory.context_ids(turn),
                chosen_ids=trajectory.turns[turn].action_ids,
                rejected_ids=(),
                confidence=statistics.fmean(known.values()),
            )


def _failed(turn: Turn) -> bool:
    """Return whether the environment refused a call of a turn."""
    return any(call.error is not None for call in turn.tool_calls) or not all(one.carried_out for one in turn.results)


def pairs_of_step(pairs: Sequence[Pair], step: int, count: int) -> list[Pair]:
    """Return the pairs of a step (1-based) and, in proportion over the steps, turns to hold. Both lists are read in a cycle."""
    compared, held = apart(pairs)
    count = min(count, len(compared))
    first, end = (at * count * len(held) // max(1, len(compared)) for at in (step - 1, step))
    return [*_cycle(compared, (step - 1) * count, count), *_cycle(held, first, end - first)]


def apart(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs with two answers, and the turns to hold."""
    return [pair for pair in pairs if pair.rejected_ids], [pair for pair in pairs if not pair.rejected_ids]


def _cycle(pairs: Sequence[Pair], start: int, count: int) -> list[Pair]:
    return [pairs[(start + i) % len(pairs)] for i in range(count)]
