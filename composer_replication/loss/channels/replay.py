"""The replay channel: preference pairs of one prompt and two answers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from composer_replication.config import ReplayConfig
from composer_replication.distillation import dpo_loss, simpo_loss
from composer_replication.loss.channels.common import Result, divisor, watched
from composer_replication.loss.forward import common_prefix, forward, read_on_top, read_prefix, why_no_prefix
from composer_replication.loss.metrics import Pull

_SIDES = ("chosen", "rejected")


def replay_channel(model: nn.Module, batch: Mapping[str, Tensor], options: ReplayConfig) -> Result:
    """Return the weighted mean of DPO's or SimPO's loss over the pairs, without `options.weight`."""
    (chosen, chosen_tokens), (rejected, rejected_tokens), pull = _pair_logps(model, batch)
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


def _pair_logps(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Pull]:
    """Return the summed log-prob [P] and the number of response tokens [P] of the chosen and of the rejected answers, and the
    channel's pull."""
    ids, mask, wanted = _both_sides(batch)
    pairs = len(ids) // 2
    row, position = wanted.nonzero(as_tuple=True)
    if why_no_prefix(model) is None:
        shared = _shared_prompt(ids, mask, wanted)
        _, prefix = read_prefix(model, ids[:pairs, : max(1, int(shared.max()))], None)
        owner = torch.arange(pairs, device=ids.device).repeat(2)
        rows = read_on_top(model, prefix, owner, shared.repeat(2), ids, mask, row, position)
    else:
        rows = forward(model, ids, mask).rows(row, position)
    pull = watched(rows)
    logprobs = rows.logprobs(ids[row, position]).logprobs
    chosen, rejected = logprobs.new_zeros(len(ids)).index_add(0, row, logprobs).view(2, pairs)
    chosen_tokens, rejected_tokens = wanted.sum(-1).view(2, pairs)
    return (chosen, chosen_tokens), (rejected, rejected_tokens), pull


def _shared_prompt(ids: Tensor, mask: Tensor, wanted: Tensor) -> Tensor:
    """Return the length [P] of the prefix that a pair's two sequences (of [2P, T]) have in common and read only once: what
    predicts a wanted token stands after it, and so does at least one token of each side, whose answer may be empty."""
    pairs = len(ids) // 2
    first = torch.where(wanted.any(-1), wanted.int().argmax(-1), ids.shape[1])
    limit = torch.minimum(first, mask.sum(-1)).view(2, pairs).amin(0) - 1
    return torch.minimum(common_prefix(ids[:pairs], ids[pairs:]), limit).clamp(min=0)


def _both_sides(batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, attention mask and wanted tokens [2P, T]: the chosen answers, then the rejected ones."""
    columns = max(batch[f"dpo_{side}_input_ids"].shape[1] for side in _SIDES)
    found: list[list[Tensor]] = [[], [], []]
    for side in _SIDES:
        ids, wanted = batch[f"dpo_{side}_input_ids"], batch[f"dpo_{side}_response_mask"] != 0
        if bool(wanted[:, 0].any()):
            raise ValueError(f"dpo_{side}_response_mask selects position 0, which has no predecessor and therefore no log-prob")
        mask = batch.get(f"dpo_{side}_attention_mask", torch.ones_like(ids))
        for where, values in zip(found, (ids, mask, wanted), strict=True):
            where.append(pad(values, (0, columns - ids.shape[1])))
    return torch.cat(found[0]), torch.cat(found[1]), torch.cat(found[2])
