"""KL(teachers || policy) from what servers tell of teachers: the likeliest tokens of each place, and how likely they are.

Each teacher is its K tokens and one bucket for all others, whose probability is what the K leave. The policy's bucket is summed
up over the vocabulary itself, so that both sides are distributions and the divergence is a lower bound of the full one (data
processing). Several teachers count by the mean of their divergences, whose gradient over the named tokens is that of the
divergence from the mean of their distributions.

With s the policy's probabilities, t a teacher's, and r = t(rest) / s(rest): dD / dlogit = s (1 - r) + [named] (r s - t).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from composer_replication.distillation._numerics import log_probs
from composer_replication.distillation.fused import WeightedRows
from composer_replication.kernels import Head, for_blocks, total_loss

_LEAST_REST = 1e-6
"""A smaller bucket of a teacher's is what rounding leaves of 1, and counts as empty."""


class SoftTargets(NamedTuple):
    """What M teachers say of n places."""

    ids: Tensor
    """[n, M, K] int64, none twice in a place."""
    logprobs: Tensor
    """[n, M, K] in nats; -inf where fewer than K tokens are told. A place of which a teacher says nothing has only these."""

    def rows(self, rows: slice) -> SoftTargets:
        """Return some of the places."""
        return SoftTargets(self.ids[rows], self.logprobs[rows])


def soft_target_divergence(
    hidden: Tensor, head: Head, targets: SoftTargets, weights: Tensor, *, rows_per_chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Sum of `weights` [n] times the divergence of head(hidden [n, H]) from the teachers.

    Returns the 0-dim sum, differentiable once with respect to hidden, weight and bias, and the divergences [n] without gradient.
    A row of weight 0 has no influence. Raises ValueError on shapes that disagree.
    """
    _check(len(hidden), targets, weights)
    kernel = _SoftTargetKernel(head, targets, weights)
    return total_loss(hidden, head, kernel, rows_per_chunk=rows_per_chunk), kernel.per_row


def soft_target_divergence_per_row(logits: Tensor, targets: SoftTargets) -> Tensor:
    """Return the divergence [n] of logits [n, V] from the teachers, by ordinary operations. A place of which no teacher says
    anything has 0."""
    log_s = log_probs(logits)
    total, teachers = log_s.new_zeros(len(log_s)), log_s.new_zeros(len(log_s))
    for ids, logprobs in zip(targets.ids.unbind(1), targets.logprobs.unbind(1), strict=True):
        told, t, rest = _teacher(ids, logprobs.to(log_s.dtype))
        log_rest = log_s.scatter(-1, told, -torch.inf).logsumexp(-1)
        named = torch.where(t > 0, t * (t.log() - log_s.gather(-1, told)), 0.0).sum(-1)
        others = torch.where(rest > 0, rest * (rest.log() - log_rest), 0.0)
        known = t.sum(-1) > 0
        total = total + torch.where(known, named + others, 0.0)
        teachers = teachers + known.to(log_s.dtype)
    return total / teachers.clamp(min=1.0)


class _SoftTargetKernel(WeightedRows):
    """`RowKernel` of the divergence."""

    def __init__(self, head: Head, targets: SoftTargets, weights: Tensor) -> None:
        super().__init__(head, weights, 1.0)
        self.targets = targets

    def __call__(self, product: Tensor, teacher: Tensor | None, rows: slice) -> Tensor:
        del teacher
        targets, losses = self.targets.rows(rows), self.per_row[rows]

        def work(block: slice) -> None:
            slope = self.head.finish_(product[block], 1.0)
            losses[block] = _diverge(product[block], targets.rows(block))
            if slope is not None:
                product[block].mul_(slope)

        for_blocks(product, work)
        return self.weigh(losses, product, rows)


def _diverge(logits: Tensor, targets: SoftTargets) -> Tensor:
    """Return the divergences [n] of logits [n, V]; their gradient overwrites the logits."""
    log_s = logits.log_softmax(-1)
    s = log_s.exp()
    losses, dense, teachers = s.new_zeros(len(s)), s.new_zeros(len(s)), s.new_zeros(len(s))
    sparse: list[tuple[Tensor, Tensor]] = []
    for ids, logprobs in zip(targets.ids.unbind(1), targets.logprobs.unbind(1), strict=True):
        told, t, rest = _teacher(ids, logprobs.to(s.dtype))
        log_rest = log_s.scatter(-1, told, -torch.inf).logsumexp(-1)
        mine = log_s.gather(-1, told)
        known = (t.sum(-1) > 0).to(s.dtype)
        ratio = torch.where(rest > 0, (rest.log() - log_rest).exp(), 0.0)
        losses += torch.where(t > 0, t * (t.log() - mine), 0.0).sum(-1)
        losses += torch.where(rest > 0, rest * (rest.log() - log_rest), 0.0)
        dense += known * (1.0 - ratio)
        first = torch.ones_like(t).masked_fill_(~torch.isfinite(logprobs), 0.0)  # a token that fills a gap counts once
        sparse.append((told, first * (ratio.unsqueeze(-1) * mine.exp() - t)))
        teachers += known
    teachers.clamp_(min=1.0)
    torch.mul(s, (dense / teachers).unsqueeze(-1), out=logits)
    for told, values in sparse:
        logits.scatter_add_(-1, told, values / teachers.unsqueeze(-1))
    return losses / teachers


def _teacher(ids: Tensor, logprobs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return one teacher's tokens [n, K], whose gaps are filled with its first, their probabilities [n, K], and that of all
    others [n]."""
    there = torch.isfinite(logprobs)
    t = torch.where(there, logprobs.exp(), 0.0)
    first = ids.gather(-1, there.to(torch.int8).argmax(-1, keepdim=True))
    rest = 1.0 - t.sum(-1)
    rest = torch.where((rest < _LEAST_REST) | ~there.any(-1), 0.0, rest)
    return torch.where(there, ids, first), t, rest


def _check(rows: int, targets: SoftTargets, weights: Tensor) -> None:
    shapes = (tuple(targets.ids.shape), tuple(targets.logprobs.shape))
    if weights.shape != (rows,) or shapes[0] != shapes[1] or len(shapes[0]) != 3 or shapes[0][0] != rows:
        raise ValueError(
            f"rows disagree: {rows} of hidden states, targets {shapes[0]} and {shapes[1]}, weights {tuple(weights.shape)}"
        )
