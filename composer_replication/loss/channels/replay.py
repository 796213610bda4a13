"""The replay channel: preference pairs of one prompt and two answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from composer_replication.config import ReplayConfig
from composer_replication.distillation.dpo import that_count
from composer_replication.distillation.preference import (
    apo_zero_losses,
    dpo_losses,
    dpo_positive_losses,
    ipo_losses,
    kto_losses,
    simpo_losses,
)
from composer_replication.distillation.soft_targets import SoftTargets
from composer_replication.loss.channels.common import Result, divisor, watched
from composer_replication.loss.forward import Forward, FusedRows, PlainRows, Rows, concatenated
from composer_replication.loss.metrics import Pull

_SIDES = ("chosen", "rejected")


class Answers(NamedTuple):
    """The chosen, or the rejected, answers of P pairs."""

    logprobs: Tensor
    """[P]: summed over an answer's tokens."""
    tokens: Tensor
    """[P]: their number, at least 1."""
    reference: Tensor | None
    """[P]: the reference's `logprobs`, where they are known: NaN for a pair of which they are not."""

    @property
    def distances(self) -> Tensor:
        """[P]: how much more likely they are than under the reference, in nats."""
        if self.reference is None or bool(torch.isnan(self.reference).any()):
            raise ValueError("the loss on pairs needs the reference's log-probs of both answers of every pair")
        return self.logprobs - self.reference

    @property
    def averages(self) -> Tensor:
        """[P]: log-probs per token."""
        return self.logprobs / self.tokens


def sides_of(options: ReplayConfig) -> Sequence[str]:
    """Return which answers the loss reads."""
    return _SIDES if options.compares else _SIDES[:1]


def pair_rows(batch: Mapping[str, Tensor], options: ReplayConfig) -> list[Rows]:
    """Return the rows that the channel reads: the chosen answers on their prompts and, where they count, the rejected ones."""
    return [Rows(batch[f"dpo_{side}_input_ids"], batch.get(f"dpo_{side}_attention_mask")) for side in sides_of(options)]


def replay_channel(sides: Sequence[Forward], batch: Mapping[str, Tensor], options: ReplayConfig) -> Result:
    """Return the loss of the pairs, a mean over the tokens of the chosen answers, without `options.weight`.

    A pair's loss is the preference loss plus the negative log-likelihood of its chosen answer, times `options.anchor`, each
    summed over the answer's tokens and weighted by the pair's confidence. The sum is divided by the batch's `replay_denominator`:
    the weighted number of the chosen answers' tokens, so that a weight of 1 means for a token here what it means in the other
    channels. Without that key the mean over pairs is taken, as in the papers. Where teachers say what they find likely in the
    places of an answer, `options.soft_targets` of its loss is the divergence from them.

    Args:
        sides: forward passes over `pair_rows`.
    """
    answers, pull, chosen = _answers(sides, batch, options)
    weights = batch.get("dpo_weights", torch.ones_like(answers[0].logprobs))
    held = batch.get("dpo_held", torch.zeros_like(weights)) != 0
    if options.compares and bool(held.any()):
        raise ValueError(f"a turn to hold is for the variant sft, and the variant is {options.variant}")
    losses, margins = pair_losses(answers, options, weights, batch.get("dpo_divergence"))
    total = divisor(weights, batch.get("replay_denominator"), "replay_denominator")
    soft = _soft_targets(chosen, batch, options.soft_targets * weights / total)
    if soft is not None:
        losses = losses * torch.where(soft.told, 1.0 - options.soft_targets, 1.0)
    value = (weights * losses).sum() / total + (0.0 if soft is None else soft.value)
    pairs = float((~held).sum())
    metrics = {"replay/loss": value.item(), "replay/pairs": pairs, "replay/held": len(losses) - pairs}
    if soft is not None and bool(soft.told.any()):
        metrics["replay/teacher_kl/mean"] = soft.mean
    if pairs == 0:
        return Result(value, metrics, pull)
    metrics["replay/chosen/tokens/mean"] = answers[0].tokens[~held].float().mean().item()
    for side, found in zip(_SIDES, answers, strict=False):
        metrics[f"replay/{side}/logprob/mean"] = found.averages.detach()[~held].mean().item()
        if found.reference is not None:
            distances = (found.logprobs.detach() - found.reference)[~held]
            known = distances[~torch.isnan(distances)]
            metrics |= {"replay/known/pairs": float(len(known))}
            metrics |= {f"replay/{side}/distance/mean": known.mean().item()} if len(known) else {}
    if margins is not None:
        metrics["replay/accuracy"] = (margins > 0).float().mean().item()
        metrics["replay/margin/mean"] = margins.mean().item()
    return Result(value, metrics, pull)


def pair_losses(
    answers: Sequence[Answers], options: ReplayConfig, weights: Tensor, divergence: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return the losses [P] of pairs without their weights, and their margins [P], above 0 where the chosen answer is preferred;
    no margins where the rejected answers do not count. Pairs of weight 0 have no influence, whatever their log-probs are.

    Args:
        divergence: [], KTO's reference point, at least 0.

    Raises:
        ValueError: the loss needs a reference or a reference point, and there is none.
    """
    (likelihood,) = that_count(weights, answers[0].logprobs)
    if not options.compares:
        return -likelihood, None
    if options.variant == "simpo":
        chosen, rejected = that_count(weights, answers[0].averages, answers[1].averages)
        beta = options.simpo_beta
        losses = simpo_losses(chosen, rejected, beta, options.simpo_gamma)
    else:
        chosen, rejected = that_count(weights, answers[0].distances, answers[1].distances)
        beta = options.dpo_beta
        losses = _with_reference(chosen, rejected, answers, options, divergence)
    return losses - options.anchor * likelihood, (beta * (chosen - rejected)).detach()


def _with_reference(
    chosen: Tensor, rejected: Tensor, answers: Sequence[Answers], options: ReplayConfig, divergence: Tensor | None
) -> Tensor:
    """Return the losses [P] of distances [P] to the reference."""
    beta = options.dpo_beta
    if options.variant == "dpo":
        return dpo_losses(chosen, rejected, beta, options.label_smoothing)
    if options.variant == "dpo_positive":
        return dpo_positive_losses(chosen, rejected, beta, options.dpo_positive_penalty)
    if options.variant == "ipo":
        return ipo_losses(chosen / answers[0].tokens, rejected / answers[1].tokens, beta)
    if options.variant == "apo_zero":
        return apo_zero_losses(chosen, rejected, beta)
    if divergence is None:
        raise ValueError("KTO needs a reference point (`dpo_divergence`)")
    return kto_losses(chosen, rejected, beta, divergence)


class _Chosen(NamedTuple):
    """The tokens of the chosen answers."""

    read: FusedRows | PlainRows
    """Rows that predict them."""
    row: Tensor
    """[n]: their pairs."""
    position: Tensor
    """[n]: their places in these."""


class _Soft(NamedTuple):
    """The divergence of the chosen answers from teachers."""

    value: Tensor
    """0-dim, with gradient: the weighted sum."""
    told: Tensor
    """[P]: pairs of which a teacher speaks of every token."""
    mean: float
    """Over their tokens, in nats."""


def _soft_targets(chosen: _Chosen, batch: Mapping[str, Tensor], weights: Tensor) -> _Soft | None:
    """Return the sum of the divergences of the answers' tokens, times `weights` [P]; None where no weight or no teacher is
    there."""
    if "dpo_chosen_target_ids" not in batch or not bool(weights.any()):
        return None
    _, row, position = chosen
    targets = SoftTargets(*(batch[f"dpo_chosen_target_{what}"][row, position] for what in ("ids", "logprobs")))
    silent = ~torch.isfinite(targets.logprobs).any(-1).any(-1)
    told = weights.new_zeros(len(weights)).index_add(0, row, silent.to(weights.dtype)) == 0
    value, losses = chosen.read.soft_loss(targets, (weights * told)[row])
    of_told = losses[told[row]]
    return _Soft(value, told, float(of_told.mean()) if len(of_told) else 0.0)


def _answers(sides: Sequence[Forward], batch: Mapping[str, Tensor], options: ReplayConfig) -> tuple[list[Answers], Pull, _Chosen]:
    """Return the answers of each side that is read, the channel's pull, and the tokens of the chosen answers."""
    found, tokens, owners, counts, places = [], [], [], [], []
    for number, (side, read) in enumerate(zip(sides_of(options), sides, strict=True)):
        ids, wanted = batch[f"dpo_{side}_input_ids"], batch[f"dpo_{side}_response_mask"] != 0
        if bool(wanted[:, 0].any()):
            raise ValueError(f"dpo_{side}_response_mask selects position 0, which has no predecessor and therefore no log-prob")
        row, position = wanted.nonzero(as_tuple=True)
        found.append(read.rows(row, position))
        tokens.append(ids[row, position])
        owners.append(row + number * len(ids))
        counts.append(wanted.sum(-1).clamp(min=1))
        places.append((row, position))
    rows, owner, pairs = concatenated(found), torch.cat(owners), len(counts[0])
    pull = watched(rows)
    logprobs = rows.logprobs(torch.cat(tokens)).logprobs
    sums = logprobs.new_zeros(len(found) * pairs).index_add(0, owner, logprobs).view(len(found), pairs)
    references = [batch.get(f"dpo_{side}_ref_logprobs") for side in sides_of(options)]
    chosen = _Chosen(rows if len(found) == 1 else found[0], *places[0])
    return [Answers(*one) for one in zip(sums, counts, references, strict=True)], pull, chosen
