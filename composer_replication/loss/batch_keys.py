"""The keys of a batch (`compose`'s module docstring says what they hold), and batches that a loss would read wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor

Batch: TypeAlias = dict[str, Tensor]
ROW_KEYS = (
    "input_ids",
    "attention_mask",
    "response_mask",
    "labels",
    "advantages",
    "old_logprobs",
    "sampler_logprobs",
    "ref_logprobs",
    "rlvr_weights",
    "routed_experts",
)
HINT_KEYS = (
    "ctx_teacher_input_ids",
    "ctx_teacher_attention_mask",
    "student_row",
    "student_response_idx",
    "teacher_response_idx",
    "sdpo_loss_mask",
)
PAIR_KEYS = (
    *(
        f"dpo_{side}_{what}"
        for side in ("chosen", "rejected")
        for what in ("input_ids", "attention_mask", "response_mask", "ref_logprobs")
    ),
    "dpo_weights",
    "dpo_held",
    "dpo_chosen_target_ids",
    "dpo_chosen_target_logprobs",
)
UNMATCHED_KEYS = tuple(f"dpo_unmatched_{what}" for what in ("input_ids", "attention_mask", "response_mask", "ref_logprobs"))
"""Answers of pairs after the prompts of others, one for each pair of a step that has one; no loss reads them."""
DENOMINATORS = {
    "input_ids": "rlvr_denominator",
    "ctx_teacher_input_ids": "hint_denominator",
    "dpo_chosen_input_ids": "replay_denominator",
}
OF_ALL_PAIRS = "dpo_divergence"
"""A number that every micro-batch carries."""
_KEYS = {*ROW_KEYS, *HINT_KEYS, *PAIR_KEYS, *DENOMINATORS.values(), OF_ALL_PAIRS, "dropped_tokens", "router_share"}
_MASKS = ("attention_mask", "ctx_teacher_attention_mask", "dpo_chosen_attention_mask", "dpo_rejected_attention_mask")


def check_keys(batch: Mapping[str, Tensor]) -> None:
    """Refuse a key that nothing would read: what it says of the batch would be ignored. Packed rows, with `position_ids` that
    start anew within a row, would then attend to each other.

    Raises ValueError.
    """
    unknown = batch.keys() - _KEYS
    if unknown:
        packed = " (rows are padded, not packed)" if "position_ids" in unknown else ""
        raise ValueError(f"a batch has no {', '.join(sorted(unknown))}{packed}: leave it out")


def check_padding(batch: Mapping[str, Tensor]) -> None:
    """Refuse rows that are not padded on the right, where sequences that share a prefix are read from their first column on.

    Raises ValueError naming the mask and the row.
    """
    for key in _MASKS:
        mask = batch.get(key)
        if mask is None or mask.numel() == 0:
            continue
        gaps = ((mask[:, :-1] == 0) & (mask[:, 1:] != 0)).any(-1)
        if bool(gaps.any()):
            row = int(gaps.nonzero()[0])
            raise ValueError(f"{key} has a 0 before a 1 in row {row}: pad every row on the right, and number positions so")
