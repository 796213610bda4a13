"""verl's policy loss `composer`: our surrogate on each token, averaged by verl's `agg_loss`.

verl calls it with what it has of the policy gradient only; hints and pairs join one level up, in `engine`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss

from composer_replication.policy_gradient import kl_k3, surrogate, surrogate_of
from composer_replication.recipes.verl.plan import Plan

__all__ = ["policy_loss"]


@register_policy_loss("composer")
def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a micro-batch, its tensors [B, R], and metrics named `channel/what/stat`.

    Divided by what verl counts over the whole batch (`config.global_batch_info`), and multiplied by the number of ranks, as FSDP
    takes the mean of their gradients.
    """
    rlvr = Plan.required().config.loss.rlvr
    row, column = response_mask.nonzero(as_tuple=True)
    old, new = old_log_prob[row, column], log_prob[row, column]
    found = surrogate(
        surrogate_of(rlvr.objective),
        new,
        old,
        advantages[row, column],
        epsilon_low=rlvr.epsilon_low,
        epsilon_high=rlvr.epsilon_high,
        sequence=row,
    )
    losses = found.loss if rollout_is_weights is None else found.loss * rollout_is_weights[row, column]
    spread = torch.zeros_like(log_prob).index_put((row, column), losses)
    shared = config.global_batch_info
    value = agg_loss(loss_mat=spread, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **shared)
    metrics = {"rlvr/loss": value.item() / shared["dp_size"], "rlvr/tokens": float(len(row))}
    if len(row):
        metrics |= {
            "rlvr/ratio/max": found.ratio.max().item(),
            "rlvr/clip_frac": found.clipped.float().mean().item(),
            "rlvr/kl_k3": kl_k3(old, new.detach()).mean().item(),
        }
    if rollout_is_weights is not None and len(row):
        weights = rollout_is_weights[row, column]
        metrics |= {"rlvr/importance/mean": weights.mean().item(), "rlvr/importance/max": weights.max().item()}
    return value, metrics
