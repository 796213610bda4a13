"""Hints and pairs as tensors with one row per trajectory, for trainers that shuffle and split a batch by its first dimension.

`spread` gives every trajectory its own hinted turns (M at most) and a share of the pairs (S at most), `gathered` reads them back
from whatever rows a micro-batch got. A slot that holds nothing has weight 0. The two denominators are those of the whole batch,
so that the channels add up however its rows are dealt out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward import Forward

PREFIX = "composer_"
"""Prefix of the keys, so that they differ from a trainer's own."""
_HINTS = (
    "ctx_teacher_input_ids",
    "ctx_teacher_attention_mask",
    "student_response_idx",
    "teacher_response_idx",
    "sdpo_loss_mask",
)
_PAIRS = (
    *(f"dpo_{side}_{what}" for side in ("chosen", "rejected") for what in ("input_ids", "attention_mask", "response_mask")),
    "dpo_chosen_ref_logprobs",
    "dpo_rejected_ref_logprobs",
    "dpo_weights",
    "dpo_held",
)
_DENOMINATORS = ("hint_denominator", "replay_denominator")


def spread(batch: Mapping[str, Tensor], rows: int) -> Batch:
    """Return the hints and pairs of a batch of `collate` as [rows, M, ...] and [rows, S, ...], and their 0-dim denominators.

    `student_row` names the row of a hinted turn; pairs belong to no row, and are spread evenly. Empty for a batch without both.
    """
    found: Batch = {}
    if "ctx_teacher_input_ids" in batch:
        found |= _dealt(batch, _HINTS, batch["student_row"], rows)
    if "dpo_chosen_input_ids" in batch:
        numbers = torch.arange(len(batch["dpo_weights"]), device=batch["dpo_weights"].device)
        found |= _dealt(batch, _PAIRS, numbers * rows // len(numbers), rows)
    return found | {PREFIX + key: batch[key] for key in _DENOMINATORS if key in batch}


def gathered(inputs: Mapping[str, Any]) -> Batch:
    """Return the keys of `compose_loss` for the hints and pairs in the rows of `inputs`; `student_row` counts these rows."""
    found: Batch = {}
    if PREFIX + "sdpo_loss_mask" in inputs:
        held = (inputs[PREFIX + "sdpo_loss_mask"] > 0).any(-1)  # [rows, M]
        if bool(held.any()):
            found |= {key: inputs[PREFIX + key][held] for key in _HINTS} | {"student_row": held.nonzero()[:, 0]}
    if PREFIX + "dpo_weights" in inputs:
        held = inputs[PREFIX + "dpo_weights"] > 0  # [rows, S]
        if bool(held.any()):
            found |= {key: inputs[PREFIX + key][held] for key in _PAIRS if PREFIX + key in inputs}
    return found | {key: inputs[PREFIX + key] for key in _DENOMINATORS if PREFIX + key in inputs}


def unpadded(inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Join prompts and completions: right-padded ids [B, P + C], their mask, and the padding [B] that stood before them."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    padding = inputs["prompt_mask"].shape[1] - inputs["prompt_mask"].sum(-1)
    columns = torch.arange(ids.shape[1], device=ids.device) + padding.unsqueeze(-1)
    inside = columns < ids.shape[1]
    columns = columns.clamp(max=ids.shape[1] - 1)
    return ids.gather(1, columns) * inside, mask.gather(1, columns) * inside, padding


def with_students(
    batch: Batch, inputs: Mapping[str, Any], heard: Sequence[Forward], *, whole: bool
) -> tuple[Batch, Forward | None]:
    """Add the students' rows to `batch`, and return TRL's forward pass over them where it can be read.

    Where it cannot be read, only the rows that are compared are added, unless all processes have to read equally many.
    """
    if "student_row" not in batch and not whole:
        return batch, None
    ids, mask, padding = unpadded(inputs)
    if len(heard) == 1 and heard[0].output.shape[:2] == ids.shape:
        return batch | {"input_ids": ids, "attention_mask": mask}, _LeftPadded(heard[0], padding)
    if "student_row" not in batch:
        return batch, None
    rows, owner = torch.unique(batch["student_row"], return_inverse=True)
    return batch | {"input_ids": ids[rows], "attention_mask": mask[rows], "student_row": owner}, None


class _LeftPadded(Forward):
    """A forward pass over rows with padding [B] before them, read by positions without it."""

    def __init__(self, heard: Forward, padding: Tensor) -> None:
        super().__init__(heard.output, heard.head)
        self._padding = padding

    def rows(self, row: Tensor, position: Tensor) -> Any:
        return super().rows(row, position + self._padding[row])


def _dealt(batch: Mapping[str, Tensor], keys: tuple[str, ...], owner: Tensor, rows: int) -> Batch:
    """Give row i the entries whose `owner` [n] is i, each in a separate slot."""
    earlier = torch.ones(len(owner), len(owner), dtype=torch.bool, device=owner.device).tril(-1)
    slot = ((owner.unsqueeze(0) == owner.unsqueeze(1)) & earlier).sum(-1)
    slots = int(slot.max()) + 1
    found: Batch = {}
    for key in keys:
        if key in batch:
            values = batch[key]
            found[PREFIX + key] = values.new_zeros((rows, slots, *values.shape[1:])).index_put((owner, slot), values)
    return found
