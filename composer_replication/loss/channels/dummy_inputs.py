"""Inputs for channels that have none, where ranks must make the same forward passes.

Under DDP and FSDP2 a forward pass of one rank waits for that of every other rank. Which passes a channel makes follows from the
model and the options alone, so it suffices that every rank runs every channel: one without inputs runs on two made-up tokens. Its
denominator is infinite, so that value and gradients are exactly 0.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch
from torch import Tensor

from composer_replication.loss.channels.rlvr import token_weights


def with_dummy_inputs(
    batch: Mapping[str, Tensor], off: Container[str], weights: Mapping[str, float], device: torch.device
) -> dict[str, Tensor]:
    """Return `batch` with inputs for the channels (`rlvr`, `hint`, `replay`) that are `off` and have a weight all the same.
    `rlvr` always has, but needs none where `hint` is on: both read one forward pass."""
    tokens = torch.zeros((1, 2), dtype=torch.int64, device=device)
    second = torch.tensor([[0.0, 1.0]], device=device)
    never = torch.tensor(torch.inf, device=device)
    made = dict(batch)
    if "rlvr" in off and "hint" in off:
        made = {key: value for key, value in batch.items() if key.startswith(("dpo_", "replay_"))}
        made |= {"input_ids": tokens, "rlvr_weights": second, "rlvr_denominator": never}
        made |= {"router_share": torch.zeros((), device=device)}  # experts need not be in balance on made-up tokens
    if "hint" in off and weights["hint"] > 0:
        row = token_weights(made).any(-1).int().argmax().view(1)  # one that has two tokens
        made |= {
            "ctx_teacher_input_ids": made["input_ids"][row, :2],
            "ctx_teacher_attention_mask": torch.ones_like(tokens),
            "student_row": row,
            "student_response_idx": tokens[:, :1] + 1,
            "teacher_response_idx": tokens[:, :1] + 1,
            "sdpo_loss_mask": second[:, 1:],
            "hint_denominator": never,
        }
    if "replay" in off and weights["replay"] > 0:
        for side in ("chosen", "rejected"):
            made |= {
                f"dpo_{side}_input_ids": tokens,
                f"dpo_{side}_attention_mask": torch.ones_like(tokens),
                f"dpo_{side}_response_mask": second,
                f"dpo_{side}_ref_logprobs": second[:, 0],
            }
        made |= {"dpo_weights": second[:, 1], "replay_denominator": never}
    return made
