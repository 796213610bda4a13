"""The replay channel: preference pairs of one prompt and two answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from composer_replication.config import ReplayConfig
from composer_replication.distillation import dpo_loss, simpo_loss
from composer_replication.loss.channels.common import Result, divisor, watched
from composer_replication.loss.forward import Forward, Rows, concatenated
from composer_replication.loss.metrics import Pull

_SIDES = ("chosen", "rejected")


def pair_rows(batch: Mapping[str, Tensor]) -> list[Rows]:
    """Return the rows that the channel reads: the chosen answers on their prompts, and the rejected ones."""
    return [Rows(batch[f"dpo_{side}_input_ids"], batch.get(f"dpo_{side}_attention_mask")) for side in _SIDES]


def replay_channel(sides: Sequence[Forward], batch: Mapping[str, Tensor], options: ReplayConfig) -> Result:
    """Return the weighted mean of DPO's or SimPO's loss over the pairs, without `options.weight`.

    Args:
        sides: forward passes over `pair_rows`.
    """
    (chosen, chosen_tokens), (rejected, rejected_tokens), pull = _pair_logps(sides, batch)
    chosen_sum, rejected_sum = chosen.detach(), rejected.detach()
    weights = batch.get("dpo_weights", torch.ones_like(chosen))
    if options.variant == "dpo":
        ref_chosen, ref_rejected = batch["dpo_chosen_ref_logprobs"], batch["dpo_rejected_ref_logprobs"]
        losses = dpo_loss(chosen, rejected, ref_chosen, ref_rejected, options.dpo_beta, weights=weights, reduction="none")
        margin = options.dpo_beta * ((chosen - ref_chosen) - (rejected - ref_rejected)).detach()
    else:
        chosen, rejected = chosen / chosen_tokens.clamp(min=1), rejected / rejected_tokens.clamp(min=1)
        losses = simpo_loss(chosen, rejected, options.simpo_beta, options.simpo_gamma, weights=weights, reduction="none")
        margin = options.simpo_beta * (chosen - rejected).detach()
    value = losses.sum() / divisor(weights, batch.get("replay_denominator"), "replay_denominator")
    metrics = {
        "replay/loss": value.item(),
        "replay/pairs": float(len(margin)),
        "replay/accuracy": (margin > 0).float().mean().item(),
        "replay/margin/mean": margin.mean().item(),
        "replay/chosen/logprob/mean": (chosen_sum / chosen_tokens.clamp(min=1)).mean().item(),
        "replay/rejected/logprob/mean": (rejected_sum / rejected_tokens.clamp(min=1)).mean().item(),
    }
    return Result(value, metrics, pull)


def _pair_logps(
    sides: Sequence[Forward], batch: Mapping[str, Tensor]
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Pull]:
    """Return the summed log-prob [P] and the number of response tokens [P] of the chosen and of the rejected answers, and the
    channel's pull."""
    found, tokens, owners, counts = [], [], [], []
    for number, (side, read) in enumerate(zip(_SIDES, sides, strict=True)):
        ids, wanted = batch[f"dpo_{side}_input_ids"], batch[f"dpo_{side}_response_mask"] != 0
        if bool(wanted[:, 0].any()):
            raise ValueError(f"dpo_{side}_response_mask selects position 0, which has no predecessor and therefore no log-prob")
        row, position = wanted.nonzero(as_tuple=True)
        found.append(read.rows(row, position))
        tokens.append(ids[row, position])
        owners.append(row + number * len(ids))
        counts.append(wanted.sum(-1))
    rows, owner, pairs = concatenated(found), torch.cat(owners), len(counts[0])
    pull = watched(rows)
    logprobs = rows.logprobs(torch.cat(tokens)).logprobs
    chosen, rejected = logprobs.new_zeros(2 * pairs).index_add(0, owner, logprobs).view(2, pairs)
    return (chosen, counts[0]), (rejected, counts[1]), pull
