"""Log-probs that a teacher gives to chosen tokens, without its [N, V] logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from composer_replication.kernels.head import accumulation_dtype
from composer_replication.kernels.one_pass import TeacherRows, chunk_rows, teacher_logits


@torch.no_grad()
def fused_teacher_logprobs(
    teacher: Sequence[TeacherRows], targets: Tensor, *, temperature: float = 1.0, rows_per_chunk: int | None = None
) -> Tensor:
    """Return log-probs [N] of `targets` [N] (int64) under softmax(logits / temperature), without gradient; the logits are the
    weighted sum of the parts'.

    Raises ValueError unless temperature > 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    weight = teacher[0].head.weight
    dtype = accumulation_dtype(weight.dtype)
    n, vocabulary = len(targets), weight.shape[0]
    step = min(max(n, 1), rows_per_chunk or chunk_rows(vocabulary, dtype))
    logits = weight.new_empty((step, vocabulary), dtype=dtype)
    part = torch.empty_like(logits) if len(teacher) > 1 else None
    logprobs = weight.new_empty(n, dtype=dtype)
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        taught = teacher_logits(teacher, rows, logits, part).div_(temperature)
        chosen = taught.gather(-1, targets[rows].unsqueeze(-1)).squeeze(-1)
        logprobs[rows] = chosen - taught.logsumexp(-1)
    return logprobs
