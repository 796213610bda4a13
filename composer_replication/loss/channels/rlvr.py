"""The first channel: policy gradient on the tests' verdict, or LM cross-entropy where the batch has no advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from composer_replication.config import RlvrConfig
from composer_replication.kernels import TokenScores
from composer_replication.loss.channels.common import Result, divisor, watched
from composer_replication.loss.forward import Forward
from composer_replication.policy_gradient import (
    Surrogate,
    importance_weights,
    kl_k3,
    kl_to_reference,
    off_policy_mask,
    surrogate,
    surrogate_of,
)


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


def teaching_tokens(batch: Mapping[str, Tensor], options: RlvrConfig) -> Tensor:
    """Return which tokens [B, T] can have a gradient: those with a weight, and of the policy gradient only those with an
    advantage where no KL, entropy bonus or pull on the ratio (`dppo`) acts on the others."""
    weighted = token_weights(batch) != 0
    everywhere = options.kl_beta > 0 or options.has_entropy_bonus or options.objective == "dppo"
    if "advantages" not in batch or everywhere:
        return weighted
    advantages = batch["advantages"]
    return weighted & ((advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages) != 0)


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
    predicted = student.rows(row, position)
    pull = watched(predicted)
    value, _ = predicted.token_loss(targets, lambda logprobs, rows: -shares[rows] * logprobs, 1.0)
    return Result(value, {"lm_ce/loss": value.item(), "lm_ce/tokens": float(len(row))}, pull)


def policy_gradient(student: Forward, batch: Mapping[str, Tensor], options: RlvrConfig, temperature: float) -> Result:
    """Compute the surrogate on sampled tokens, plus the KL to the reference where `kl_beta` > 0, less the entropy where
    `entropy_bonus` > 0. All three are averaged in the same way.

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
    pull = watched(predicted)
    bonus = options.entropy_bonus * shares if options.entropy_bonus > 0 else None
    if options.whole_sequences:  # a token's derivative depends on its whole sequence
        scores = predicted.logprobs(targets, temperature, entropy_gradient=bonus is not None)
        value = loss(scores.logprobs, slice(None)).sum()
        if bonus is not None:
            value = value - (bonus * scores.entropy).sum()
        scores = TokenScores(scores.logprobs.detach(), scores.entropy.detach())
    else:
        value, scores = predicted.token_loss(targets, loss, temperature, entropy_weights=None if bonus is None else -bonus)
    metrics = tokens.metrics(scores, row, options) | {
        "rlvr/dropped/tokens": float(batch.get("dropped_tokens", 0)),
        "rlvr/loss": value.item(),
        "rlvr/tokens": float(len(row)),
    }
    return Result(value, metrics, pull)


@dataclass(frozen=True, slots=True, eq=False)
class TokenStreams:
    """Per-token inputs of the policy gradient, [n] each."""

    advantages: Tensor
    old: Tensor | None
    """Log-probs under the proximal policy, to which ratios are taken. None: the current ones, that is exactly on-policy."""
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

    def sampled(self, rows: slice) -> Tensor | None:
        """Return the log-probs of the policy that sampled, as far as they are known; None where it is the current one."""
        known = self.old if self.sampler is None else self.sampler
        return None if known is None else known[rows]

    def corrections(self, logprobs: Tensor, rows: slice, sequence: Tensor, options: RlvrConfig) -> Tensor | None:
        """Return the importance weights of the surrogate; the KL term has none, as in TRL."""
        if self.sampler is None or options.importance == "none":
            return None
        scored = logprobs if self.old is None else self.old[rows]
        return importance_weights(
            scored,
            self.sampler[rows],
            options.importance,
            low=options.importance_low,
            high=options.importance_high,
            sequence=sequence if options.importance_level == "sequence" else None,
        )

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
            ratio_cap=options.ratio_cap,
        )

    def kept(self, logprobs: Tensor, rows: slice, sequence: Tensor, options: RlvrConfig) -> Tensor | None:
        """Return 0 for tokens of sequences that the policy has left behind, else 1; None without such a limit."""
        sampled = self.sampled(rows)
        if options.off_policy_threshold is None or sampled is None:
            return None
        return off_policy_mask(logprobs, sampled, self.advantages[rows], sequence, options.off_policy_threshold)

    def losses(self, logprobs: Tensor, rows: slice, sequence: Tensor, options: RlvrConfig) -> Tensor:
        losses = self.surrogate(logprobs, rows, sequence, options).loss
        for factors in (self.kept(logprobs, rows, sequence, options), self.corrections(logprobs, rows, sequence, options)):
            losses = losses if factors is None else factors * losses
        if self.reference is None:
            return losses
        sampled = self.sampled(rows)
        kl = kl_to_reference(logprobs, self.reference[rows], options.kl_estimator, sampled_logprobs=sampled)
        return losses + options.kl_beta * kl

    def metrics(self, scores: TokenScores, sequence: Tensor, options: RlvrConfig) -> dict[str, float]:
        """Return the metrics of all tokens: means, but for `*/min` and `*/max`."""
        every, logprobs = slice(None), scores.logprobs
        found = self.surrogate(logprobs, every, sequence, options)
        sampled = self.sampled(every)
        values = {
            "rlvr/ratio/mean": found.ratio,
            "rlvr/clip_frac": found.clipped,
            "rlvr/clip_frac/low": found.clipped & (found.ratio < 1.0),
            "rlvr/clip_frac/high": found.clipped & (found.ratio > 1.0),
            "rlvr/kl_k3": kl_k3(logprobs if sampled is None else sampled, logprobs),
            "rlvr/entropy/mean": scores.entropy,
        }
        extremes = {"rlvr/ratio/max": found.ratio.max().item(), "rlvr/ratio/min": found.ratio.min().item()}
        kept = self.kept(logprobs, every, sequence, options)
        if kept is not None:
            values["rlvr/off_policy_frac"] = 1.0 - kept
        corrections = self.corrections(logprobs, every, sequence, options)
        if corrections is not None:
            at_limit = corrections == (options.importance_high if options.importance == "tis" else 0.0)
            values |= {
                "rlvr/importance/mean": corrections,
                "rlvr/importance/square/mean": corrections**2,
                "rlvr/importance/limited_frac": at_limit,
            }
            extremes["rlvr/importance/max"] = corrections.max().item()
        if self.reference is not None:
            values["rlvr/kl_ref/mean"] = kl_k3(logprobs, self.reference)
        return {name: value.float().mean().item() for name, value in values.items()} | extremes
