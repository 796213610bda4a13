"""The rewards that advantages are computed from: the tests' verdict, less penalties."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import pstdev
from typing import TypeAlias

from composer_replication.config import RunConfig
from composer_replication.observe import mean_and_se
from composer_replication.policy_gradient import (
    Effort,
    EffortWeights,
    effort_penalty,
    group_advantages,
    has_signal,
    process_advantages,
    soft_overlong_punishment,
)
from composer_replication.types import Group, HintedTurn, Trajectory, Unscored

TokenAdvantages: TypeAlias = Mapping[str, Sequence[Sequence[float]]]
"""By trajectory id, for each turn: one number for each of its sampled tokens."""
RewardFunction: TypeAlias = Callable[[Trajectory], float]
"""Scores a finished trajectory in place of its environment; 1.0 and more counts as passed. An exception ends the run."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of the trajectories of a step, in their order."""

    values: list[float | None]
    """None: no part of the policy gradient."""
    metrics: dict[str, float]
    of_tokens: TokenAdvantages = field(default_factory=dict)
    """Added to the advantages of sampled tokens; empty without process rewards and without teachers that score tokens."""


def verdict(trajectory: Trajectory) -> float | None:
    """Return the tests' reward; None where there is none."""
    return None if isinstance(trajectory.reward, Unscored) else trajectory.reward


def group_verdicts(group: Group) -> list[float | None]:
    """Return the verdicts of the siblings."""
    return [verdict(t) for t in group.trajectories]


def weigh(
    groups: Sequence[Group],
    config: RunConfig,
    *,
    end_of_thinking: int | None = None,
    kl: Callable[[Sequence[Trajectory]], Sequence[float]] | None = None,
    steps: Callable[[Sequence[Trajectory]], Sequence[Sequence[float | None]]] | None = None,
    teachers: Callable[[Sequence[Trajectory]], Sequence[Sequence[Sequence[float]]]] | None = None,
) -> Advantages:
    """Compute advantages over groups from the verdicts less the penalties of `config.reward`.

    With `rollout.refills` the groups whose verdicts are all the same take no part, as DAPO has it. `end_of_thinking` is the id of
    the token after a turn's thinking; `kl` gives the KL to the reference in nats, `steps` a score of every turn, and `teachers`
    their log-probs of every sampled token. Each is asked only where it has a weight. Raises ValueError where it is missing then.
    """
    trajectories = [t for g in groups for t in g.trajectories]
    penalties = penalties_of(trajectories, config, end_of_thinking)
    if config.reward.kl_weight > 0:
        if kl is None:
            raise ValueError("reward.kl_weight is above 0, and nothing gives the KL")
        penalties["kl"] = [config.reward.kl_weight * nats for nats in kl(trajectories)]
    totals = [sum(each) for each in zip(*penalties.values(), strict=True)] if penalties else [0.0] * len(trajectories)
    values: list[float | None] = []
    for group in groups:
        verdicts = group_verdicts(group)
        rewards = [None if v is None else v - totals[len(values) + i] for i, v in enumerate(verdicts)]
        if config.rollout.refills > 0 and not has_signal(verdicts):
            rewards = [None] * len(rewards)
        values += group_advantages(rewards, config.loss.rlvr.advantage, scaled_by=verdicts)
    metrics = _spread(values) | {f"reward/{name}_penalty": mean_and_se(each)[0] for name, each in penalties.items()}
    added: list[TokenAdvantages] = []
    if config.reward.prm.weight > 0:
        if steps is None:
            raise ValueError("reward.prm.weight is above 0, and nothing scores the turns")
        added.append(_of_process(groups, values, steps(trajectories), config.reward.prm.weight, metrics))
    if config.reward.teacher_kl_weight > 0:
        if teachers is None:
            raise ValueError("reward.teacher_kl_weight is above 0, and nothing gives the teachers' log-probs")
        taking = [trajectory for trajectory, value in zip(trajectories, values, strict=True) if value is not None]
        added.append(_of_teachers(taking, teachers(taking), config.reward.teacher_kl_weight, metrics))
    return Advantages(values, metrics, _added(trajectories, added))


def _spread(values: Sequence[float | None]) -> dict[str, float]:
    """Return how far the advantages of a step's trajectories lie apart; nothing where there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return {}
    return {"rlvr/advantage/std": pstdev(known), "rlvr/advantage/min": min(known), "rlvr/advantage/max": max(known)}


def _added(trajectories: Sequence[Trajectory], parts: Sequence[TokenAdvantages]) -> TokenAdvantages:
    """Add up what several sources give the tokens of each trajectory that one of them has."""
    found = {t.trajectory_id: [part[t.trajectory_id] for part in parts if t.trajectory_id in part] for t in trajectories}
    return {
        name: [[math.fsum(tokens) for tokens in zip(*turn, strict=True)] for turn in zip(*given, strict=True)]
        for name, given in found.items()
        if given
    }


def _of_teachers(
    trajectories: Sequence[Trajectory],
    scores: Sequence[Sequence[Sequence[float]]],
    weight: float,
    metrics: dict[str, float],
) -> TokenAdvantages:
    """Return `weight` times log p(teachers) - log p(policy) of every sampled token; 0 where one of the two is not known."""
    gaps = {
        trajectory.trajectory_id: [
            [theirs - ours for theirs, ours in zip(of_turn, turn.logprobs, strict=True)]
            for of_turn, turn in zip(of_turns, trajectory.turns, strict=True)
        ]
        for trajectory, of_turns in zip(trajectories, scores, strict=True)
    }
    every = [gap for turns in gaps.values() for turn in turns for gap in turn]
    known = [gap for gap in every if math.isfinite(gap)]
    metrics["reward/teacher_kl/mean"] = -mean_and_se(known)[0]
    metrics["reward/teacher_kl/unknown"] = float(len(every) - len(known))
    return {
        name: [[weight * gap if math.isfinite(gap) else 0.0 for gap in turn] for turn in turns] for name, turns in gaps.items()
    }


def _of_process(
    groups: Sequence[Group],
    values: Sequence[float | None],
    scores: Sequence[Sequence[float | None]],
    weight: float,
    metrics: dict[str, float],
) -> TokenAdvantages:
    """Return the weighted process advantages of the trajectories that take part, over each group; 0 of the others."""
    known = [score for turns in scores for score in turns if score is not None]
    metrics["reward/prm/mean"] = mean_and_se(known)[0]
    metrics["reward/prm/unscored"] = float(sum(map(len, scores)) - len(known))
    found: dict[str, list[list[float]]] = {}
    start = 0
    for group in groups:
        part = slice(start, start + len(group.trajectories))
        taken = [turns if value is not None else [] for turns, value in zip(scores[part], values[part], strict=True)]
        for trajectory, advantages in zip(group.trajectories, process_advantages(taken), strict=True):
            of_turns = advantages or [0.0] * len(trajectory.turns)
            found[trajectory.trajectory_id] = [
                [weight * advantage] * len(turn.action_ids) for advantage, turn in zip(of_turns, trajectory.turns, strict=True)
            ]
        start = part.stop
    return found


def penalties_of(trajectories: Sequence[Trajectory], config: RunConfig, end_of_thinking: int | None) -> dict[str, list[float]]:
    """Return what is taken off each trajectory's verdict, by the penalty's name. The KL's is not among them."""
    penalties: dict[str, list[float]] = {}
    if config.reward.effort.weight > 0:
        penalties["effort"] = [_effort(t, config, end_of_thinking) for t in trajectories]
    if config.reward.overlong_tokens > 0:
        penalties["overlong"] = [_overlong(t, config) for t in trajectories]
    return penalties


def taking_part(
    trajectories: Sequence[Trajectory], advantages: Sequence[float | None], hinted: Sequence[HintedTurn]
) -> tuple[list[Trajectory], list[float | None]]:
    """Return the trajectories that contribute to the loss, with their advantages.

    The others would go through the model for nothing.
    """
    taught = {turn.trajectory_id for turn in hinted}
    paired = zip(trajectories, advantages, strict=True)
    kept = [(t, a) for t, a in paired if a is not None or t.trajectory_id in taught]
    return [t for t, _ in kept], [a for _, a in kept]


def effort_of(trajectory: Trajectory, end_of_thinking: int | None) -> Effort:
    """Count the tokens and turns that a trajectory took."""
    thinking, calling, final = 0, 0, 0
    for turn in trajectory.turns:
        ids = turn.action_ids
        thought = ids.index(end_of_thinking) + 1 if end_of_thinking in ids else 0
        thinking += thought
        if turn.tool_calls:
            calling += len(ids) - thought
        else:
            final += len(ids) - thought
    return Effort(
        thinking_tokens=thinking,
        tool_call_tokens=calling,
        final_tokens=final,
        tool_output_tokens=sum(len(turn.observation_ids) for turn in trajectory.turns),
        tool_calls=sum(len(turn.tool_calls) for turn in trajectory.turns),
        turns=len(trajectory.turns),
    )


def _effort(trajectory: Trajectory, config: RunConfig, end_of_thinking: int | None) -> float:
    effort = config.reward.effort
    weights = EffortWeights(**{f.name: getattr(effort, f.name) for f in fields(EffortWeights)})
    return effort.weight * effort_penalty(effort_of(trajectory, end_of_thinking), weights=weights, k=effort.k, q=effort.q)


def _overlong(trajectory: Trajectory, config: RunConfig) -> float:
    longest, cache = config.rollout.trajectory_tokens, config.reward.overlong_tokens
    return -soft_overlong_punishment(trajectory.num_sampled_tokens(), max_length=longest, cache=cache)
