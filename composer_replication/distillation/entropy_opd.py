"""Entropy-aware on-policy distillation: cover the teacher's modes where it is unsure, seek one where it is sure.

    w = clamp(H(teacher) / h_max, 0, 1)        loss = mean over tokens of w KL(T || S) + (1 - w) KL(S || T)

This is the soft form of the idea of arXiv:2603.07079, not the paper's executable loss (a hard entropy threshold that ADDS a top-k
forward KL). With h_max = log V of a large vocabulary w stays small on real text (H is a few nats of 12): the loss is then nearly
the reverse KL. Set h_max to the entropy, in nats, from which the forward KL should rule.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from composer_replication.distillation._numerics import check_above_zero, log_probs, masked_mean, masked_rows
from composer_replication.distillation.jsd import generalized_jsd_per_token


def teacher_entropy(teacher_logits: Tensor) -> Tensor:
    """Return the entropy in nats of softmax(teacher_logits) per row: [..., V] -> [...], at least float32, without gradient."""
    entropy: Tensor = torch.special.entr(log_probs(teacher_logits.detach()).exp()).sum(-1)
    return entropy


def entropy_aware_opd_per_token(student_logits: Tensor, teacher_logits: Tensor, *, h_max: float | None = None) -> Tensor:
    """Return w KL(T || S) + (1 - w) KL(S || T) per row: [..., V] and [..., V] -> [...].

    `h_max` in nats; None means log V. The weight has no gradient. Raises ValueError when h_max is not above 0.
    """
    check_h_max(h_max)
    if h_max is None:
        h_max = math.log(teacher_logits.shape[-1])
    weight = (teacher_entropy(teacher_logits) / h_max).clamp(0.0, 1.0)
    forward = generalized_jsd_per_token(student_logits, teacher_logits, beta=0.0)
    reverse = generalized_jsd_per_token(student_logits, teacher_logits, beta=1.0)
    return weight * forward + (1.0 - weight) * reverse


def check_h_max(h_max: float | None) -> None:
    """Raise ValueError unless h_max is above 0 nats or None."""
    if h_max is not None:
        check_above_zero("h_max", h_max)


def entropy_aware_opd_loss(
    student_logits: Tensor, teacher_logits: Tensor, mask: Tensor | None = None, *, h_max: float | None = None
) -> Tensor:
    """Mean of `entropy_aware_opd_per_token` over the rows of `mask` [...] of [..., V] logits.

    The mask holds weights; 0 leaves a row out. All masked gives 0.
    """
    student, teacher, weights = masked_rows(student_logits, teacher_logits, mask)
    return masked_mean(entropy_aware_opd_per_token(student, teacher, h_max=h_max), weights)
