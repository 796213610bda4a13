"""Gradient checkpointing: the same gradients, at a lower peak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from composer_replication.distillation import make_self_teacher
from composer_replication.loss import compose_loss
from composer_replication.loss.forward import enable_checkpointing, update_mode
from composer_replication.trainer.planning.live_bytes import LiveBytes
from gpu_checks import made
from gpu_checks.found import Found

_MOST = 1e-5


def check(device: torch.device, folder: Path) -> Found:  # noqa: ARG001
    """Compare a model of more blocks with and without: bytes of tensors above its weights."""
    found, size = Found(), made.size_on(device)
    size = replace(size, layers=2 * size.layers, tokens=2 * size.tokens)
    config = made.run_config(device)
    model = made.make(config, made.qwen3(size))
    teacher = make_self_teacher("frozen", model)
    batch = made.batch_for(model, size)
    gradients, peaks = [], []
    for checkpoints in (False, True):
        if checkpoints:
            enable_checkpointing(model)
        update_mode(model)
        with LiveBytes(device) as live:
            live.forget_peak()
            before = live.now
            parts = compose_loss(model, batch, config.loss, self_teacher=teacher, strict=True)
            gradients.append(made.gradient(model, parts.total))
            peaks.append((live.peak - before) / 2**20)
            found.holds(f"shared prefixes are read once, checkpointing {checkpoints}", not parts.fallbacks)
            del parts
    found.at_most("gradient", made.relative_error(gradients[1], gradients[0]), _MOST)
    found.note("peak without, MB", peaks[0])
    found.note("peak with, MB", peaks[1])
    found.at_most("peak with checkpointing, share of that without", peaks[1] / peaks[0], 0.9)
    return found
