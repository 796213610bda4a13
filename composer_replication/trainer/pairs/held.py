"""The turns that the replay channel holds, and the pairs of each step.

A gradient from disagreements alone moves the other turns of a trace too, until the policy no longer gets to where teachers and
policy disagreed. So each pair brings another turn of its trace along, as the starting policy took it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from composer_replication.config import RunConfig
from composer_replication.hints import other_turns
from composer_replication.traces.states import state_id
from composer_replication.types import Pair, Trajectory


def turns_to_hold(pairs: Sequence[Pair], trajectories: Sequence[Trajectory], config: RunConfig) -> Iterator[Pair]:
    """Yield `loss.replay.held_turns` other turns of its trace for each pair, drawn with the run's seed from those without a pair:
    the action that the starting policy took there, with the mean confidence of the trace's pairs.

    Its negative log-likelihood estimates KL(starting policy || policy) without bias, as the starting policy sampled it.
    """
    if config.loss.replay.variant != "sft":
        return
    by_id = {trajectory.trajectory_id: trajectory for trajectory in trajectories}
    found: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for pair in pairs:
        name, place = pair.pair_id.rsplit("#", 1)
        found[name][int(place)] = pair.confidence
    for name, known in found.items():
        trajectory = by_id[name]
        for turn in other_turns(trajectory, known, config.loss.replay.held_turns * len(known), config.seed):
            yield Pair(
                pair_id=state_id(name, turn),
                prompt_ids=trajectory.context_ids(turn),
                chosen_ids=trajectory.turns[turn].action_ids,
                rejected_ids=(),
                confidence=statistics.fmean(known.values()),
            )


def pairs_of_step(pairs: Sequence[Pair], step: int, count: int) -> list[Pair]:
    """Return the pairs of a step (1-based) and, in proportion, turns to hold: both lists are read over and over."""
    compared, held = apart(pairs)
    count = min(count, len(compared))
    return [*_turn_of(compared, step, count), *_turn_of(held, step, round(count * len(held) / max(1, len(compared))))]


def apart(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs with two answers, and the turns to hold."""
    return [pair for pair in pairs if pair.rejected_ids], [pair for pair in pairs if not pair.rejected_ids]


def _turn_of(pairs: Sequence[Pair], step: int, count: int) -> list[Pair]:
    return [pairs[((step - 1) * count + i) % len(pairs)] for i in range(count)]
