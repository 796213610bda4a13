"""Pairs from hinted re-attempts: what a policy gets right with a hint, learnt so that it needs none.

From the turn that went wrong on, a failed trajectory is sampled again with the hint. Where that passes the tests, the action it
took there is imitated without the hint: rationalisation as in STaR (arXiv:2203.14465, section 3.2), at the turn that needs it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from composer_replication.config import RunConfig
from composer_replication.rollouts.reattempt import AGAIN
from composer_replication.traces.states import state_id
from composer_replication.trainer.collector import RolloutCollector
from composer_replication.trainer.pairs.held import turns_to_hold
from composer_replication.types import Group, HintedTurn, Pair, Trajectory, Unscored


@dataclass(frozen=True, slots=True)
class Reattempts:
    """The re-attempts of a step."""

    trajectories: Sequence[Trajectory] = ()
    pairs: Sequence[Pair] = ()
    """The action of each that passed against the one that failed, then the turns to hold."""
    metrics: dict[str, float] = field(default_factory=dict)

    def beside(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return a step's pairs with those of the re-attempts, to which a policy that has moved gives no reference log-probs."""
        return [*pairs, *self.pairs]


async def reattempt(
    collector: RolloutCollector, config: RunConfig, groups: Sequence[Group], hinted: Sequence[HintedTurn], step: int, version: int
) -> Reattempts:
    """Try up to `loss.replay.reattempts` failed trajectories of a step again, drawn with the run's seed.

    Raises as `run_rollouts`.
    """
    replay = config.loss.replay
    if replay.reattempts == 0 or replay.weight == 0:
        return Reattempts()
    failures = failures_with_hints(groups, hinted)
    count = min(replay.reattempts, len(failures))
    drawn = random.Random(f"{config.seed}/{step}/{AGAIN}").sample(failures, count)
    found = await collector.try_again(step, version, drawn)
    pairs = pairs_of_reattempts(drawn, found)
    held = turns_to_hold(pairs, found, config)
    metrics = {"reattempt/tried": float(len(found)), "reattempt/passed": float(sum(one.passed for one in found))}
    return Reattempts(found, [*pairs, *held], metrics | {"reattempt/pairs": float(len(pairs))})


def failures_with_hints(groups: Sequence[Group], hinted: Sequence[HintedTurn]) -> list[tuple[Trajectory, HintedTurn]]:
    """Return the trajectories that were graded and did not pass, each with its first hinted turn."""
    first: dict[str, HintedTurn] = {}
    for turn in sorted(hinted, key=lambda turn: turn.turn):
        if not turn.held:
            first.setdefault(turn.trajectory_id, turn)
    trajectories = [one for group in groups for one in group.trajectories]
    failed = [one for one in trajectories if not isinstance(one.reward, Unscored) and not one.passed]
    return [(one, first[one.trajectory_id]) for one in failed if one.trajectory_id in first]


def pairs_of_reattempts(failures: Sequence[tuple[Trajectory, HintedTurn]], found: Sequence[Trajectory]) -> list[Pair]:
    """Return a pair for each re-attempt that passed: its action at the hinted turn, and the one that failed there.

    The same action in the same place counts once. An action that repeats the failed one teaches nothing, and one whose call
    failed is not what made the tests pass. A pair's confidence is the share of the re-attempts in its place that passed: where
    the hint helps seldom, the action may have had little to do with it.
    """
    made: dict[tuple[tuple[int, ...], tuple[int, ...]], Pair] = {}
    places = [failed.context_ids(hinted.turn) for failed, hinted in failures]
    tried, passed = Counter(places), Counter(place for place, again in zip(places, found, strict=True) if again.passed)
    for (failed, hinted), again in zip(failures, found, strict=True):
        if not again.passed or len(again.turns) <= hinted.turn:
            continue
        turn = again.turns[hinted.turn]
        chosen = turn.action_ids
        worked = bool(turn.results) and all(result.carried_out for result in turn.results)
        if not worked or chosen == hinted.action_ids:
            continue
        prompt = failed.context_ids(hinted.turn)
        pair = Pair(
            pair_id=state_id(again.trajectory_id, hinted.turn),
            prompt_ids=prompt,
            chosen_ids=chosen,
            rejected_ids=hinted.action_ids,
            confidence=passed[prompt] / tried[prompt],
        )
        made.setdefault((prompt, chosen), pair)
    return list(made.values())
