"""The composed loss beside whole logits in float64."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedConfig

from composer_replication.distillation import make_self_teacher
from composer_replication.loss import compose_loss
from gpu_checks import made
from gpu_checks.found import Found
from gpu_checks.plain import plain_loss

MOST = 1e-4
"""Of a relative error in float32."""


def check(device: torch.device, folder: Path) -> Found:  # noqa: ARG001
    """Compare all three channels at once: Qwen3 with a tied head, Qwen2 with a head apart from its embeddings."""
    found, size = Found(), made.size_on(device)
    _compare(found, "Qwen3", device, made.qwen3(size))
    _compare(found, "Qwen2", device, made.qwen2(size))
    return found


def _compare(found: Found, name: str, device: torch.device, like: PreTrainedConfig) -> None:
    config = made.run_config(device)
    model, teacher = made.make(config, like), made.make(config, like)
    batch = made.batch_for(model, made.size_on(device))
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.mul_(1.1)  # a policy that has moved from its frozen start
    parts = compose_loss(model, batch, config.loss, self_teacher=make_self_teacher("frozen", teacher), strict=True)
    found.holds(f"{name}: the fused paths are taken", not parts.fallbacks)
    ours, value = made.gradient(model, parts.total), parts.total.detach()
    exact = made.in_float64(model)
    expected = plain_loss(exact, made.in_float64(teacher), batch)
    found.at_most(f"{name}: value", abs(float(value / expected.detach()) - 1.0), MOST)
    found.at_most(f"{name}: gradient", made.relative_error(ours, made.gradient(exact, expected)), MOST)
    for channel in ("rlvr", "hint", "replay"):
        found.holds(f"{name}: {channel} is on", channel not in parts.off)
