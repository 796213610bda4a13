"""The learner in each precision: two updates, and its gradient's error beside that of the same model under plain autocast."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import torch

from composer_replication.config.model import Precision
from composer_replication.distillation import make_self_teacher
from composer_replication.loss import compose_loss
from composer_replication.trainer.learning.learner import Learner
from gpu_checks import made
from gpu_checks.found import Found
from gpu_checks.plain import plain_loss

BESIDE_AUTOCAST = 2.0
"""How many times the error of plain autocast a gradient may have."""
_FLOAT32 = 1e-4
CHOICES: dict[str, dict[str, Any]] = {
    **{name: {"model": {"precision": name}} for name in get_args(Precision) if name != "auto"},
    "Muon": {"optimizer": {"type": "muon"}},
}
"""What the learner is tried with: every precision, and the other optimizer."""


def check(device: torch.device, folder: Path) -> Found:  # noqa: ARG001
    """Compare gradients, then let a learner take two updates on one batch."""
    found, size = Found(), made.size_on(device)
    like = made.qwen3(size)
    exact = made.make(made.run_config(device), like)
    batch = made.batch_for(exact, size)
    expected = made.gradient(exact, plain_loss(exact, exact, batch))
    for name, sections in CHOICES.items():
        config = made.run_config(device, **sections)
        model = made.make(config, like)
        with torch.autocast(device.type, torch.bfloat16):
            loss = plain_loss(model, model, batch)
        autocast = made.relative_error(made.gradient(model, loss), expected)
        teacher = make_self_teacher("frozen", model)
        parts = compose_loss(model, batch, config.loss, self_teacher=teacher, strict=True)
        error = made.relative_error(made.gradient(model, parts.total), expected)
        del loss, teacher, parts
        found.note(f"{name}: gradient of plain Hugging Face under autocast", autocast)
        found.at_most(f"{name}: gradient", error, _FLOAT32 if in_float32(name) else BESIDE_AUTOCAST * autocast)
        two_updates(found, name, Learner(model, config), batch)
        del model
    return found


def in_float32(name: str) -> bool:
    """Return whether a choice multiplies in float32."""
    return name not in ("mixed", "bfloat16")


def two_updates(found: Found, name: str, learner: Learner, batch: Any) -> None:
    """Let a learner take two updates: everything stays finite, its loss falls and its weights change."""
    before = {key: value.detach().clone() for key, value in learner.policy.named_parameters() if value.requires_grad}
    results = [learner.update(batch) for _ in range(2)]
    losses = [result.metrics["loss/total"] for result in results]
    norms = [result.metrics["optimizer/grad_norm"] for result in results]
    after = dict(learner.policy.named_parameters())
    moved = made.relative_error({key: after[key].detach() for key in before}, before)
    found.note(f"{name}: loss", " -> ".join(f"{loss:.4g}" for loss in losses))
    found.note(f"{name}: weights moved by", moved)
    found.holds(f"{name}: loss, gradient and weights are finite", all(map(math.isfinite, [*losses, *norms, moved])))
    found.holds(f"{name}: the loss falls", losses[1] < losses[0])
    found.holds(f"{name}: the weights change", moved > 0.0)
