"""The policy's uncertainty when it acted: the entropy of its distribution at every token of an action."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from composer_replication.loss.forward.forward import forward
from composer_replication.loss.forward.modes import evaluating
from composer_replication.loss.forward.router_replay import padded_experts
from composer_replication.types import Trajectory


def action_entropies(model: nn.Module, trajectories: Sequence[Trajectory]) -> dict[str, list[float | None]]:
    """Mean entropy in nats over the tokens of each turn's action, by trajectory id; None for a turn without tokens.

    A rollout keeps the log-probs of the sampled tokens alone, and one sample of -log p is a poor estimate of its mean; so the
    model reads every trajectory once more, exactly as it saw it, and only the rows of the actions go through the head. The
    entropy is that of the distribution which was sampled from: logits divided by the trajectory's temperature (by 1 where the
    likeliest token was taken). `model` must be the policy that acted.
    """
    return {trajectory.trajectory_id: _of_turns(model, trajectory) for trajectory in trajectories}


def _of_turns(model: nn.Module, trajectory: Trajectory) -> list[float | None]:
    lengths = [len(turn.action_ids) for turn in trajectory.turns]
    if not any(lengths):
        return [None] * len(lengths)
    ids = torch.tensor([trajectory.context_ids(len(lengths))], device=next(model.parameters()).device)  # [1, T]
    places = [trajectory.action_start(i) + k for i, length in enumerate(lengths) for k in range(length)]
    position = torch.tensor(places, device=ids.device)
    row = torch.zeros_like(position)
    experts = None if trajectory.experts is None else padded_experts(trajectory.experts, ids.shape[1])
    with evaluating(model):
        read = forward(model, ids, torch.ones_like(ids), experts=None if experts is None else experts[None].to(ids.device))
        scores = read.rows(row, position).logprobs(ids[row, position], trajectory.temperature or 1.0)
    means: list[float | None] = []
    entropies = scores.entropy.tolist()
    for length in lengths:
        action, entropies = entropies[:length], entropies[length:]
        means.append(sum(action) / length if length else None)
    return means
