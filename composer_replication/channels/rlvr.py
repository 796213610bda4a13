"""The first channel: policy gradient on the tests' verdict, or LM cross-entropy where the batch has no advantages."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from composer_replication.causal_lm import Forward
from composer_replication.channels.common import Result, divisor
from composer_replication.policy_gradient import clipped_surrogate, kl_k3

__all__ = ["cross_entropy", "policy_gradient", "token_weights"]


def token_weights(batch: Mapping[str, Tensor]) -> Tensor:
    """Weight stream [B, T]: the batch's own, or 1 on every token that can be trained on."""
    old = batch.get("old_logprobs") if "advantages" in batch else None
    if "rlvr_weights" in batch:
        weights = batch["rlvr_weights"]
        if bool(weights[:, 0].any()):
            raise ValueError("rlvr_weights is not 0 at position 0, which no logits predict")
        if old is not None and bool((weights[~torch.isfinite(old)] != 0).any()):
            raise ValueError(
                "rlvr_weights is not 0 where old_logprobs is not finite: leave such tokens out of the mask of sequence_weights"
            )
        return weights
    use_labels = "labels" in batch and ("advantages" not in batch or "response_mask" not in batch)
    mask = batch["labels"] != -100 if use_labels else batch["response_mask"] != 0
    if old is not None:
        mask = mask & torch.isfinite(old)
    weights = mask.float()
    weights[:, 0] = 0.0
    return weights


def cross_entropy(student: Forward, batch: Mapping[str, Tensor]) -> Result:
    """Mean negative log-prob of the labels."""
    weights = token_weights(batch)
    row, position = weights.nonzero(as_tuple=True)
    targets = batch.get("labels", batch["input_ids"])[row, position]
    shares = weights[row, position] / divisor(weights, batch.get("rlvr_denominator"), "rlvr_denominator")
    value, _ = student.rows(row, position).token_loss(targets, lambda logprobs, rows: -shares[rows] * logprobs, 1.0)
    return value, {"lm_ce/loss": value.item(), "lm_ce/tokens": float(len(row))}


def policy_gradient(
    student: Forward, batch: Mapping[str, Tensor], temperature: float, epsilon_low: float, epsilon_high: float, kl_beta: float
) -> Result:
    """The clipped surrogate on sampled tokens, with the KL to the reference where `kl_beta` > 0."""
    weights = token_weights(batch)
    row, position = weights.nonzero(as_tuple=True)
    shares = weights[row, position] / divisor(weights, batch.get("rlvr_denominator"), "rlvr_denominator")
    old = batch["old_logprobs"][row, position] if "old_logprobs" in batch else None
    advantages = batch["advantages"]
    advantages = advantages[row] if advantages.dim() == 1 else advantages[row, position]
    if kl_beta > 0 and "ref_logprobs" not in batch:
        raise ValueError("kl_beta > 0 needs ref_logprobs [B, T] in the batch: the reference policy's log-prob of each token")
    reference = batch["ref_logprobs"][row, position] if kl_beta > 0 else None

    def loss(logprobs: Tensor, rows: slice) -> Tensor:
        before = logprobs.detach() if old is None else old[rows]
        losses = clipped_surrogate(logprobs, before, advantages[rows], epsilon_low=epsilon_low, epsilon_high=epsilon_high).loss
        if reference is not None:
            losses = losses + kl_beta * kl_k3(logprobs, reference[rows])
        return shares[rows] * losses

    value, scores = student.rows(row, position).token_loss(batch["input_ids"][row, position], loss, temperature)
    before = scores.logprobs if old is None else old
    found = clipped_surrogate(scores.logprobs, before, advantages, epsilon_low=epsilon_low, epsilon_high=epsilon_high)
    metrics = {
        "rlvr/loss": value.item(),
        "rlvr/tokens": float(len(row)),
        "rlvr/ratio/max": found.ratio.max().item(),
        "rlvr/clip_frac": found.clipped.float().mean().item(),
        "rlvr/kl_k3": kl_k3(before, scores.logprobs).mean().item(),
        "rlvr/entropy/mean": scores.entropy.mean().item(),
    }
    if reference is not None:
        metrics["rlvr/kl_ref/mean"] = kl_k3(scores.logprobs, reference).mean().item()
    return value, metrics
