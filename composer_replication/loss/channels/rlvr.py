"""The first channel: policy gradient on the tests' verdict, or LM cross-entropy where the batch has no advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from composer_replication.config import RlvrConfig
from composer_replication.kernels import TokenScores
from composer_replication.loss.channels.common import Result, divisor
from composer_replication.loss.forward import Forward
from composer_replication.policy_gradient import Surrogate, importance_weights, kl_k3, surrogate, surrogate_of


def token_weights(batch: Mapping[str, Tensor]) -> Tensor:
    """Return the weight stream [B, T]: the batch's own, or 1 on every token that can be trained on."""
    if "rlvr_weights" in batch:
        weights = batch["rlvr_weights"]
        if bool(weights[:, 0].any()):
            raise ValueError("rlvr_weights is not 0 at position 0, which no logits predict")
        return weights
    old = batch.get("old_logprobs", batch.get("sampler_logprobs")) if "advantages" in batch else None
    use_labels = "labels" in batch and ("advantages" not in batch or "response_mask" not in batch)
    mask = batch["labels"] != -100 if use_labels else batch["response_mask"] != 0
    if old is not None:
        mask = mask & torch.isfinite(old)
    weights = mask.float()
    weights[:, 0] = 0.0
    return weights


def rlvr_channel(student: Forward, batch: Mapping[str, Tensor], options: RlvrConfig, temperature: float) -> Result:
    """Return the policy gradient where the batch has advantages, else LM cross-entropy.

    Args:
        temperature: that of sampling, folded into the log-probs of the policy gradient.
    """
    return policy_gradient(student, batch, options, temperature) if "advantages" in batch else cross_entropy(student, batch)


def cross_entropy(student: Forward, batch: Mapping[str, Tensor]) -> Result:
    """Mean negative log-prob of the labels. Raises ValueError where a token with a weight has none."""
    weights = token_weights(batch)
    row, position = weights.nonzero(as_tuple=True)
    targets = batch.get("labels", batch["input_ids"])[row, position]
    if bool((targets < 0).any()):
        raise ValueError("rlvr_weights is not 0 where labels has no token (-100): set it to 0 there")
    shares = weights[row, position] / divisor(weights, batch.get("rlvr_denominator"), "rlvr_denominator")
    value, _ = student.rows(row, position).token_loss(targets, lambda logprobs, rows: -shares[rows] * logprobs, 1.0)
    return value, {"lm_ce/loss": value.item(), "lm_ce/tokens": float(len(row))}


def policy_gradient(student: Forward, batch: Mapping[str, Tensor], options: RlvrConfig, temperature: float) -> Result:
    """Compute the surrogate on sampled tokens, plus the KL to the reference where `kl_beta` > 0.

    Raises ValueError when the batch lacks the log-probs that an option needs, and when what is read of a token with a weight is
    not finite: a log-ratio of infinity would be clamped to some number, as if it had been measured.
    """
    weights = token_weights(batch)
    row, position = weights.nonzero(as_tuple=True)
    shares = weights[row, position] / divisor(weights, batch.get("rlvr_denominator"), "rlvr_denominator")
    tokens = TokenStreams.gather(batch, row, position, options)

    def loss(logprobs: Tensor, rows: slice) -> Tensor:
        return shares[rows] * tokens.losses(logprobs, rows, row[rows], options)

    predicted, targets = student.rows(row, position), batch["input_ids"][row, position]
    if surrogate_of(options.objective) == "gspo":  # a token's derivative depends on its whole sequence
        scores = predicted.logprobs(targets, temperature)
        value = loss(scores.logprobs, slice(None)).sum()
        scores = TokenScores(scores.logprobs.detach(), scores.entropy)
    else:
        value, scores = predicted.token_loss(targets, loss, temperature)
    found = tokens.surrogate(scores.logprobs, slice(None), row, options)
    before = tokens.sampler if tokens.old is None else tokens.old
    before = scores.logprobs if before is None else before
    metrics = {
        "rlvr/dropped/tokens": float(batch.get("dropped_tokens", 0)),
        "rlvr/loss": value.item(),
        "rlvr/tokens": float(len(row)),
        "rlvr/ratio/max": found.ratio.max().item(),
        "rlvr/clip_frac": found.clipped.float().mean().item(),
        "rlvr/kl_k3": kl_k3(before, scores.logprobs).mean().item(),
        "rlvr/entropy/mean": scores.entropy.mean().item(),
    }
    corrections = tokens.corrections(scores.logprobs, slice(None), options)
    if corrections is not None:
        metrics |= {"rlvr/importance/mean": corrections.mean().item(), "rlvr/importance/max": corrections.max().item()}
    if tokens.reference is not None:
        metrics["rlvr/kl_ref/mean"] = kl_k3(scores.logprobs, tokens.reference).mean().item()
    return value, metrics


@dataclass(frozen=True, slots=True, eq=False)
class TokenStreams:
    """Per-token inputs of the policy gradient, [n] each."""

    advantages: Tensor
    old: Tensor | None
    """None: the current log-probs, that is exactly on-policy."""
    reference: Tensor | None
    sampler: Tensor | None
    """The engine's log-probs of the sampled tokens, when they are to be corrected for."""

    @classmethod
    def gather(cls, batch: Mapping[str, Tensor], row: Tensor, position: Tensor, options: RlvrConfig) -> TokenStreams:
        def read(key: str) -> Tensor:
            found = batch[key][row] if batch[key].dim() == 1 else batch[key][row, position]
            broken = (~torch.isfinite(found)).nonzero()
            if len(broken):
                at = int(broken[0])
                raise ValueError(
                    f"{key} is {float(found[at])} at position {int(position[at])} of row {int(row[at])}, which has a weight: "
                    "leave such tokens out of sequence_weights' mask"
                )
            return found

        def stream(key: str, wanted: bool, why: str) -> Tensor | None:
            if wanted and key not in batch:
                raise ValueError(f"{why} needs {key} [B, T] in the batch")
            return read(key) if wanted else None

        return cls(
            advantages=read("advantages"),
            old=read("old_logprobs") if "old_logprobs" in batch else None,
            reference=stream("ref_logprobs", options.kl_beta > 0, "loss.rlvr.kl_beta > 0"),
            sampler=stream("sampler_logprobs", options.importance != "none", "an importance correction"),
        )

    def corrections(self, logprobs: Tensor, rows: slice, options: RlvrConfig) -> Tensor | None:
        """Return the importance weights of the surrogate; the KL term has none, as in TRL."""
        if self.sampler is None or options.importance == "none":
            return None
        scored = logprobs if self.old is None else self.old[rows]
        low, high = options.importance_low, options.importance_high
        return importance_weights(scored, self.sampler[rows], options.importance, low=low, high=high)

    def surrogate(self, logprobs: Tensor, rows: slice, sequence: Tensor, options: RlvrConfig) -> Surrogate:
        return surrogate(
            surrogate_of(options.objective),
            logprobs,
            logprobs.detach() if self.old is None else self.old[rows],
            self.advantages[rows],
            epsilon_low=options.epsilon_low,
            epsilon_high=options.epsilon_high,
            sequence=sequence,
            tau=options.dppo_tau,
        )

    def losses(self, logprobs: Tensor, rows: slice, sequence: Tensor, options: RlvrConfig) -> Tensor:
        losses = self.surrogate(logprobs, rows, sequence, options).loss
        corrections = self.corrections(logprobs, rows, options)
        if corrections is not None:
            losses = corrections * losses
        return losses if self.reference is None else losses + options.kl_beta * kl_k3(logprobs, self.reference[rows])
