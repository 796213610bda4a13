"""Rows of a forward pass that predict chosen tokens, and the losses that are read from them: fused with the head, or plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from composer_replication.distillation import (
    Divergence,
    EntropyGatedOPD,
    SampledToken,
    fused_divergence,
    fused_entropy_gated,
    sampled_token_per_token,
)
from composer_replication.distillation.soft_targets import (
    SoftTargets,
    soft_target_divergence,
    soft_target_divergence_per_row,
)
from composer_replication.kernels import (
    Head,
    TeacherRows,
    TokenLoss,
    TokenScores,
    fused_logprobs,
    fused_teacher_logprobs,
    fused_token_loss,
    upcast,
)
from composer_replication.policy_gradient import token_logprobs

HintLoss: TypeAlias = Divergence | SampledToken | EntropyGatedOPD
"""The comparison of the hint channel's student with its teacher."""


@dataclass(frozen=True, slots=True, eq=False)
class FusedRows:
    """Hidden states and the head that reads them."""

    hidden: Tensor
    """[n, H]."""
    head: Head

    def token_loss(
        self, targets: Tensor, loss: TokenLoss, temperature: float, *, entropy_weights: Tensor | None = None
    ) -> tuple[Tensor, TokenScores]:
        """Return the sum of `loss` and of weighted entropies over the rows, and each row's log-prob and entropy; see
        `fused_token_loss`."""
        return fused_token_loss(self.hidden, self.head, targets, loss, temperature=temperature, entropy_weights=entropy_weights)

    def logprobs(self, targets: Tensor, temperature: float = 1.0, *, entropy_gradient: bool = False) -> TokenScores:  # noqa: ARG002
        """Return differentiable log-probs [n] and entropies [n], which are differentiable here at no cost."""
        return fused_logprobs(self.hidden, self.head, targets, temperature=temperature)

    def soft_loss(self, targets: SoftTargets, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of `weights` [n] times the divergence from teachers, and the divergences [n] without gradient; see
        `soft_target_divergence`."""
        return soft_target_divergence(self.hidden, self.head, targets, weights)

    def logits(self) -> Tensor:
        """Return the logits [n, V] by ordinary operations."""
        return self.head.logits(self.hidden)

    def every(self, n: int) -> FusedRows:
        """Return every n-th row."""
        return FusedRows(self.hidden[::n], self.head)

    def detach(self) -> FusedRows:
        """Return the same rows, which keep the present weights of the head."""
        bias = None if self.head.bias is None else self.head.bias.detach()
        return FusedRows(self.hidden.detach(), replace(self.head, weight=self.head.weight.detach(), bias=bias))


@dataclass(frozen=True, slots=True, eq=False)
class PlainRows:
    """Logits [n, V], of a head that cannot be fused."""

    values: Tensor

    def token_loss(
        self, targets: Tensor, loss: TokenLoss, temperature: float, *, entropy_weights: Tensor | None = None
    ) -> tuple[Tensor, TokenScores]:
        logprobs, entropy = self.logprobs(targets, temperature, entropy_gradient=entropy_weights is not None)
        value = loss(logprobs, slice(0, len(logprobs))).sum()
        if entropy_weights is not None:
            value = value + (entropy_weights * entropy).sum()
        return value, TokenScores(logprobs.detach(), entropy.detach())

    def logprobs(self, targets: Tensor, temperature: float = 1.0, *, entropy_gradient: bool = False) -> TokenScores:
        found = token_logprobs(self.values, targets, temperature=temperature, entropy_gradient=entropy_gradient)
        return TokenScores(*found)

    def soft_loss(self, targets: SoftTargets, weights: Tensor) -> tuple[Tensor, Tensor]:
        losses = soft_target_divergence_per_row(upcast(self.values), targets)
        return torch.where(weights == 0, 0.0, weights * losses).sum(), losses.detach()

    def logits(self) -> Tensor:
        return self.values

    def every(self, n: int) -> PlainRows:
        return PlainRows(self.values[::n])

    def detach(self) -> PlainRows:
        return PlainRows(self.values.detach())


def concatenated(parts: Sequence[FusedRows | PlainRows]) -> FusedRows | PlainRows:
    """Concatenate rows of one model."""
    first = parts[0]
    if isinstance(first, FusedRows):
        return FusedRows(torch.cat([part.hidden for part in parts if isinstance(part, FusedRows)]), first.head)
    return PlainRows(torch.cat([part.logits() for part in parts]))


def divergence_of(
    student: FusedRows | PlainRows,
    teacher: Sequence[tuple[float, FusedRows | PlainRows]],
    tokens: Tensor,
    loss: HintLoss,
    weights: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Sum of `weights` [n] times the loss of the student's rows against the teacher's, and what they differ by, [n].

    `tokens` [n] are those that the rows predict. The teacher's logits are the weighted sum of its parts'. One plain side makes
    both plain.
    """
    parts = [TeacherRows(rows.hidden, rows.head, share) for share, rows in teacher if isinstance(rows, FusedRows)]
    fused = len(parts) == len(teacher)
    if isinstance(loss, EntropyGatedOPD):
        if isinstance(student, FusedRows) and fused and loss.alpha != 0:
            return fused_entropy_gated(student.hidden, student.head, parts, tokens, loss, weights, temperature=temperature)
        value, found = divergence_of(student, teacher, tokens, SampledToken(), weights, temperature)
        if loss.alpha == 0:
            return value, found
        gated, added = divergence_of(student, teacher, tokens, loss.gated, weights, temperature)
        return value + loss.alpha * gated, found + loss.alpha * added
    if isinstance(loss, SampledToken):
        taught = (
            fused_teacher_logprobs(parts, tokens, temperature=temperature)
            if fused
            else token_logprobs(_mixed(teacher), tokens, temperature=temperature)[0]
        )
        value, scores = student.token_loss(
            tokens, lambda logprobs, rows: weights[rows] * sampled_token_per_token(logprobs, taught[rows]), temperature
        )
        return value, scores.logprobs - taught
    if isinstance(student, FusedRows) and fused:
        return fused_divergence(student.hidden, student.head, parts, loss, weights, temperature=temperature)
    losses = loss.per_token(upcast(student.logits()) / temperature, _mixed(teacher) / temperature)
    return torch.where(weights == 0, 0.0, weights * losses).sum(), losses.detach()


def _mixed(teacher: Sequence[tuple[float, FusedRows | PlainRows]]) -> Tensor:
    """Return logits [n, V] of a teacher in parts, without gradient."""
    return torch.stack([share * upcast(rows.logits()) for share, rows in teacher]).sum(0).detach()
