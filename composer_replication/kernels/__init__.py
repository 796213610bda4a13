"""Losses on the output of a language-model head, without its [tokens, vocabulary] logits. Knows only torch."""

from __future__ import annotations

from composer_replication.kernels.blocks import by_triton, for_blocks
from composer_replication.kernels.head import Head, accumulation_dtype, upcast
from composer_replication.kernels.one_pass import TeacherRows, logits_of, total_loss
from composer_replication.kernels.teacher_logprobs import fused_teacher_logprobs
from composer_replication.kernels.token_loss import TokenLoss, TokenScores, fused_logprobs, fused_token_loss
from composer_replication.kernels.weight_gradient import one_weight_gradient

__all__ = [
    "Head",
    "TeacherRows",
    "TokenLoss",
    "TokenScores",
    "accumulation_dtype",
    "by_triton",
    "for_blocks",
    "fused_logprobs",
    "fused_teacher_logprobs",
    "fused_token_loss",
    "logits_of",
    "one_weight_gradient",
    "total_loss",
    "upcast",
]
