"""verl's advantage estimator `composer`: our group advantages.

An estimator runs in the driver, on rewards and without gradients: group advantages are what it can do, and a loss is what it
cannot. A row's rewards [R] hold the verdict first and then, negative, the penalties; a row whose response mask is empty has no
verdict (`Unscored`), and takes no part in its group's baseline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from composer_replication.policy_gradient import AdvantageKind, group_advantages
from composer_replication.recipes.verl.plan import ArmPlan

VERDICT, PENALTY = 0, 1
"""Where a row's rewards have them."""


@register_adv_est("composer")
def composer_advantages(
    token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, index: Sequence[Any] = (), **_: Any
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns [B, R], equal on all tokens of a row; rows with equal `index` [B] are siblings."""
    del config
    values = advantages_of_rows(token_level_rewards, response_mask, index, ArmPlan.required().config.loss.rlvr.advantage)
    spread = values.unsqueeze(-1) * response_mask
    return spread, spread.clone()


def advantages_of_rows(rewards: Tensor, mask: Tensor, index: Sequence[Any], kind: AdvantageKind) -> Tensor:
    """Return the advantages [B]; 0 for a row without a verdict."""
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for row, name in enumerate(index):
        groups[name].append(row)
    values = torch.zeros(len(rewards))
    scored = mask.any(-1).tolist()
    for rows in groups.values():
        verdicts = [float(rewards[row, VERDICT]) if scored[row] else None for row in rows]
        totals = [float(rewards[row].sum()) if scored[row] else None for row in rows]
        for row, value in zip(rows, group_advantages(totals, kind, scaled_by=verdicts), strict=True):
            values[row] = 0.0 if value is None else value
    return values
