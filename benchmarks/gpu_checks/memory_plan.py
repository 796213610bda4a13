"""The memory that a dry run plans, beside the peak of what was planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plan
import torch

from gpu_checks.found import Found

_CHECKPOINTING = {"gradient_checkpointing": True}
_LORA = {"precision": "mixed", "lora": {"rank": 16}}
_SMALL = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12, "vocab_size": 16_000}
SETTINGS: dict[str, dict[str, plan.Setting]] = {
    "cuda": {
        "0.5B, mixed, checkpointing": (
            plan.SHAPES["0.5B"],
            2048,
            {"model": {"precision": "mixed"}, "optimizer": _CHECKPOINTING},
        ),
        "0.5B, bfloat16, 4 rows": (
            plan.SHAPES["0.5B"],
            512,
            {"model": {"precision": "bfloat16"}, "optimizer": {"micro_batch_tokens": 2048}},
        ),
        "1.5B, LoRA": (plan.SHAPES["1.5B"], 2048, {"model": _LORA, "optimizer": _CHECKPOINTING}),
    },
    "cpu": {"float32": (_SMALL, 512, {})},  # adapters of so small a model take less than what libraries take beside them
}
"""Of a 24 GB card these take at most two thirds."""


def check(device: torch.device, folder: Path) -> Found:  # noqa: ARG001
    """Plan and measure each setting in fresh processes: on a GPU by torch's allocator, else by the peak of the process."""
    found = Found()
    for name, setting in SETTINGS[device.type].items():
        measured: dict[str, Any] = plan.beside_the_plan(setting, str(device))
        found.note(f"{name}: planned, MB", float(measured["planned_mb"]))
        found.note(f"{name}: peak, MB", float(measured["peak_mb"]))
        found.at_most(f"{name}: relative distance", abs(measured["planned_of_peak"] - 1.0), plan.AIM)
    return found
