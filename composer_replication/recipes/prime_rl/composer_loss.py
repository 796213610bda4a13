"""The rl component of PRIME-RL's trainer with our surrogates.

    [trainer.loss]
    type = "custom"
    import_path = "composer_replication.recipes.prime_rl.composer_loss.loss_fn"
    kwargs = { objective = "dapo", epsilon_low = 0.2, epsilon_high = 0.28 }

The trainer calls it once per sequence, adds up what it returns and divides by the batch's number of rl tokens over all ranks: the
average of `loss.rlvr.objective` dapo, bnpo, cispo and dppo. Without `objective` the loss is PRIME-RL's own default. Hints and
pairs do not come through here: they travel in the trainer's ref_kl and ce components, each divided by its own tokens
(`algorithm`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from composer_replication.config import RlvrConfig
from composer_replication.loss.channels.rlvr import TokenStreams
from composer_replication.policy_gradient import Surrogate, kl_k3


class LossInputs(Protocol):
    """The arguments that PRIME-RL passes: log-probs, advantages and mask [seq] of one sequence.

    From 0.7 on there are also `ref_logprobs` and `loss_weights`, before that `teacher_logprobs`, each [seq] or None.
    """

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LossOutputs:
    """The result in the form that PRIME-RL reads."""

    loss: Tensor
    """0-dim: the SUM over the tokens of the sequence."""
    metrics: Mapping[str, Tensor]
    """0-dim each."""


def loss_fn(
    inputs: LossInputs,
    *,
    alpha_sdpo: float = 0.0,
    beta_dpo: float = 0.0,
    dppo_mask_high: float = 0.2,
    dppo_mask_low: float = 0.2,
    adv_tau: float = 1.0,
    kl_tau: float = 1e-3,
    **options: Any,
) -> LossOutputs:
    """Compute the policy gradient on one sequence's tokens in `loss_mask`, times `loss_weights` where there are any.

    With the importance correction of `options` the policy that scores is taken for the one that sampled, and the ratio to the
    engine that sampled is the weight; without, that engine's log-probs are the old ones. Tokens whose log-prob the engine did not
    give as a finite number have loss 0 (the trainer's denominator counts them all the same).

    Args:
        alpha_sdpo: weight of the hint channel, which needs logits over the vocabulary and has none here.
        beta_dpo: weight of the replay channel, which has no part here either; above 0 it warns.
        dppo_mask_high: without `objective`, drop a token with a positive advantage whose probability rose by more than this.
        dppo_mask_low: likewise one with a negative advantage whose probability fell by more than this.
        adv_tau: multiply advantages by this.
        kl_tau: without `objective`, multiply the squared log-ratio by this (`loss.rlvr.dppo_tau`).
        options: the fields of the run file's `[loss.rlvr]`.

    Raises:
        NotImplementedError: `alpha_sdpo` is above 0.
        ValueError: an option is unknown or out of its range, `objective` is given beside a keyword that it does not read, or
            `kl_beta` is above 0 and there are no reference log-probs.
    """
    _refuse_other_channels(alpha_sdpo, beta_dpo)
    if "objective" not in options:
        published = {"epsilon_low": min(dppo_mask_low, 1.0), "epsilon_high": dppo_mask_high, "dppo_tau": kl_tau}
        options = {"objective": "dppo", **published, **options}
    elif (dppo_mask_high, dppo_mask_low, kl_tau) != (0.2, 0.2, 1e-3):
        raise ValueError("with an objective give epsilon_low, epsilon_high and dppo_tau instead of dppo_mask_* and kl_tau")
    rlvr = RlvrConfig(**options)
    mask = inputs.loss_mask & torch.isfinite(inputs.inference_logprobs)
    now, sampled = inputs.trainer_logprobs[mask], inputs.inference_logprobs[mask]
    corrected = rlvr.importance != "none"
    tokens = TokenStreams(
        advantages=adv_tau * inputs.advantages[mask],
        old=None if corrected else sampled,
        reference=_reference(inputs)[mask] if rlvr.kl_beta > 0 else None,
        sampler=sampled if corrected else None,
    )
    everything, sequence = slice(None), torch.zeros_like(now, dtype=torch.int64)
    losses = tokens.losses(now, everything, sequence, rlvr)
    metrics = _metrics(tokens.surrogate(now.detach(), everything, sequence, rlvr), now, sampled, inputs.loss_mask)
    corrections = tokens.corrections(now.detach(), everything, sequence, rlvr)
    if corrections is not None:
        metrics |= {"rlvr/importance/mean": _mean(corrections), "rlvr/importance/max": _max(corrections)}
    if tokens.reference is not None:
        metrics["rlvr/kl_ref/mean"] = _mean(kl_k3(now.detach(), tokens.reference))
    weights = getattr(inputs, "loss_weights", None)
    if weights is not None:
        losses = losses * weights[mask]
    # in their places, and not as a shorter list: added up in the order in which PRIME-RL's own losses are
    placed = torch.zeros_like(inputs.trainer_logprobs, dtype=losses.dtype).masked_scatter(mask, losses)
    return LossOutputs(placed.sum(), metrics)


def _refuse_other_channels(alpha_sdpo: float, beta_dpo: float) -> None:
    where = "travels in the trainer's {} component: set loss.{}.weight in a run file with substrate.name = prime_rl"
    if alpha_sdpo:
        raise NotImplementedError(
            f"alpha_sdpo: PRIME-RL gives a loss no logits; the hint channel {where.format('ref_kl', 'hint')}"
        )
    if beta_dpo:
        warnings.warn(f"beta_dpo has no effect: the replay channel {where.format('ce', 'replay')}", stacklevel=3)


def _reference(inputs: LossInputs) -> Tensor:
    for name in ("ref_logprobs", "teacher_logprobs"):
        found = getattr(inputs, name, None)
        if isinstance(found, Tensor):
            return found
    raise ValueError(
        "loss.rlvr.kl_beta > 0 needs reference log-probs, and this sequence has no ref_logprobs (before 0.7: teacher_logprobs)"
    )


def _metrics(found: Surrogate, now: Tensor, sampled: Tensor, asked: Tensor) -> dict[str, Tensor]:
    return {
        "rlvr/loss": _mean(found.loss.detach()),
        "rlvr/tokens": now.new_tensor(float(len(now))),
        "rlvr/dropped/tokens": asked.sum().to(now.dtype) - len(now),
        "rlvr/ratio/max": _max(found.ratio),
        "rlvr/clip_frac": _mean(found.clipped.to(now.dtype)),
        "rlvr/kl_k3": _mean(kl_k3(sampled, now.detach())),
    }


def _mean(values: Tensor) -> Tensor:
    return values.sum() / max(1, len(values))


def _max(values: Tensor) -> Tensor:
    return values.max() if len(values) else values.new_zeros(())
