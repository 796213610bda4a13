"""Small numerical helpers shared by the divergences."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from composer_replication.kernels import upcast


def check_within(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise ValueError unless low <= value <= high; NaN is in no range."""
    if not low <= value <= high:
        span = f"in [{low:g}, {high:g}]" if high < math.inf else f"at least {low:g}"
        raise ValueError(f"{name} must be {span}, got {value}")


def check_above_zero(name: str, value: float) -> None:
    """Raise ValueError unless value > 0."""
    if not value > 0.0:
        raise ValueError(f"{name} must be above 0, got {value}")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise ValueError unless value is one of the choices."""
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}: expected {' or '.join(map(repr, choices))}")


def log_probs(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log-softmax of `logits / temperature` over the last dimension, at least float32.

    Raises ValueError unless temperature > 0.
    """
    check_above_zero("temperature", temperature)
    return torch.log_softmax(upcast(logits) / temperature, dim=-1)


def masked_rows(student_logits: Tensor, teacher_logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows [n, V] of student and (detached) teacher whose `mask` [...] is not zero, and their weights [n].

    Rows are gathered, not multiplied by zero: 0 * NaN is NaN. Without a mask every row has weight 1.
    Raises ValueError when the shapes disagree.
    """
    if student_logits.shape != teacher_logits.shape:
        raise ValueError(
            f"student logits {tuple(student_logits.shape)} and teacher logits {tuple(teacher_logits.shape)} differ in shape"
        )
    if mask is None:
        mask = student_logits.new_ones(student_logits.shape[:-1])
    if mask.shape != student_logits.shape[:-1]:
        raise ValueError(f"mask {tuple(mask.shape)} does not match logits {tuple(student_logits.shape)}")
    keep = mask != 0
    student = upcast(student_logits[keep])
    return student, upcast(teacher_logits.detach()[keep]), mask[keep].to(student.dtype)


def masked_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return sum(w * v) / sum(w) over [n]; 0 attached to the graph when n is 0."""
    if values.numel() == 0:
        return values.sum()
    return (weights * values).sum() / weights.sum()
