"""The rl component of PRIME-RL's trainer with our surrogates.

    [trainer.loss]
    type = "custom"
    import_path = "composer_replication.recipes.prime_rl.composer_loss.loss_fn"
    kwargs = { objective = "dapo", epsilon_low = 0.2, epsilon_high = 0.28 }

The trainer calls it once per sequence, adds up what it returns and divides by the batch's number of rl tokens over all ranks: the
average of `loss.rlvr.objective` dapo, bnpo, cispo and dppo. Hints and pairs do not come through here: they travel in the
trainer's ref_kl and ce components, each divided by its own tokens (`algorithm`).
"""

from __future__ import annotations

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


def loss_fn(inputs: LossInputs, **options: Any) -> LossOutputs:
    """Compute the policy gradient on one sequence's tokens in `loss_mask`, times `loss_weights` where there are any.

    `options` are the fields of the run file's `[loss.rlvr]`. With `importance` the policy that scores is taken for the one that
    sampled, and the ratio to the engine that sampled is the weight; without, that engine's log-probs are the old ones. Tokens
    whose log-prob the engine did not give as a finite number have loss 0 (the trainer's denominator counts them all the same).

    Raises:
        ValueError: an option is unknown or out of its range, or `kl_beta` is above 0 and there are no reference log-probs.
    """
    rlvr = RlvrConfig(**options)
    mask = inputs.loss_mask & torch.isfinite(inputs.inference_logprobs)
    now, sampled = inputs.trainer_logprobs[mask], inputs.inference_logprobs[mask]
    corrected = rlvr.importance != "none"
    tokens = TokenStreams(
        advantages=inputs.advantages[mask],
        old=None if corrected else sampled,
        reference=_reference(inputs)[mask] if rlvr.kl_beta > 0 else None,
        sampler=sampled if corrected else None,
    )
    everything, sequence = slice(None), torch.zeros_like(now, dtype=torch.int64)
    losses = tokens.losses(now, everything, sequence, rlvr)
    metrics = _metrics(tokens.surrogate(now.detach(), everything, sequence, rlvr), now, sampled, inputs.loss_mask)
    corrections = tokens.corrections(now.detach(), everything, rlvr)
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
