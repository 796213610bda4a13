"""verl's policy loss `composer`: our surrogate on each token, averaged by verl's `agg_loss`.

verl calls it with what it has of the policy gradient only; the KL to the reference, hints and pairs join one level up (`engine`).
verl's own KL term has weight 0: it is clamped, and has no gradient where the estimate is above 10.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.utils.padding import no_padding_2_padding

from composer_replication.loss.channels.rlvr import TokenStreams
from composer_replication.policy_gradient import kl_k3, kl_to_reference
from composer_replication.recipes.verl.overrides import AGGREGATION
from composer_replication.recipes.verl.plan import ArmPlan


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
    """Return the loss of a micro-batch, whose tensors are [B, R], and metrics named `channel/what/stat`.

    Divided by what verl counts over the whole batch (`config.global_batch_info`), and multiplied by the number of ranks, as FSDP
    takes the mean of their gradients.
    """
    rlvr = ArmPlan.required().config.loss.rlvr
    row, column = response_mask.nonzero(as_tuple=True)
    old, new = old_log_prob[row, column], log_prob[row, column]
    tokens = TokenStreams(advantages=advantages[row, column], old=old, reference=None, sampler=None)
    found = tokens.surrogate(new, slice(None), row, rlvr)
    losses = found.loss if rollout_is_weights is None else found.loss * rollout_is_weights[row, column]
    spread = torch.zeros_like(log_prob).index_put((row, column), losses)
    shared = config.global_batch_info
    value = agg_loss(loss_mat=spread, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **shared)
    metrics = {"rlvr/loss": value.item() / shared["dp_size"], "rlvr/tokens": float(len(row))}
    if len(row):
        metrics |= {
            "rlvr/ratio/max": found.ratio.max().item(),
            "rlvr/clip_frac": found.clipped.float().mean().item(),
        }
        if rollout_is_weights is None:
            metrics["rlvr/kl_k3"] = kl_k3(old, new.detach()).mean().item()
        else:  # there `old` is of the present policy, and verl measures how much the sampling policy differs
            weights = rollout_is_weights[row, column]
            metrics |= {"rlvr/importance/mean": weights.mean().item(), "rlvr/importance/max": weights.max().item()}
    return value, metrics


def kl_loss(log_probs: Tensor, data: Any) -> tuple[Tensor | None, dict[str, float]]:
    """Return `kl_beta` times the KL to the reference, averaged and scaled as `policy_loss`, and its metrics.

    `log_probs` are those of a micro-batch's whole sequences, nested [B, T]; `data` is the micro-batch. Without `kl_beta` None.
    """
    config = ArmPlan.required().config
    rlvr = config.loss.rlvr
    if rlvr.kl_beta == 0:
        return None, {}
    new = no_padding_2_padding(log_probs, data)
    found = data.select("response_mask", "ref_log_prob").to_padded_tensor()
    mask = found["response_mask"].bool()
    row, column = mask.nonzero(as_tuple=True)
    estimate = kl_to_reference(new[row, column], found["ref_log_prob"][row, column], rlvr.kl_estimator)
    value = rlvr.kl_beta * agg_loss(
        loss_mat=torch.zeros_like(new).index_put((row, column), estimate),
        loss_mask=mask,
        loss_agg_mode=AGGREGATION[rlvr.objective],
        dp_size=data["dp_size"],
        batch_num_tokens=data["batch_num_tokens"],
        global_batch_size=data["global_batch_size"],
        loss_scale_factor=config.rollout.trajectory_tokens,
    )
    metrics = {"rlvr/loss": value.item() / data["dp_size"]}
    return value, metrics | ({"rlvr/kl_ref/mean": estimate.detach().mean().item()} if len(row) else {})
