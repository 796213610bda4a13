"""lm_head and divergence in one pass over the rows, for student and teacher at once: four matrix products.

The formulas, with s, t = softmax of student and teacher logits (already divided by the temperature), d = log t - log s, and u =
dD / dlog s, from which dD / dlogits = u - s * sum(u):

- KL(t || s):  D = sum t d                             u = -t
- KL(s || t):  D = -sum s d                            u = s (1 - d)
- between:     D = sum b t (d - l) - (1 - b) s l       u = -(1 - b) s l,   l = log(m / s) = log1p(b expm1(d))
- a term above `token_clip` counts as the clip and has u = 0
- TAID:        D = -sum p log s                        dD / dlogits = s - p,   p = softmax((1 - t) student + t teacher)
- entropy-aware OPD: w KL(t || s) + (1 - w) KL(s || t) with w from the teacher's entropy

Every sum is over terms that are non-negative (those of the KLs after adding s - t or t - s, which sum to nothing), so that tiny
divergences keep their digits. On a GPU `triton_divergence.py` does the same in one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from composer_replication.distillation.divergence import TAID, Divergence, EntropyAwareOPD, GeneralizedJSD
from composer_replication.kernels import Head, TeacherRows, accumulation_dtype, by_triton, for_blocks, total_loss

_Rows: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(student logits [n, V], teacher logits [n, V]) -> losses [n]; the gradient overwrites the student's logits."""


def fused_divergence(
    hidden: Tensor,
    head: Head,
    teacher: Sequence[TeacherRows],
    divergence: Divergence,
    weights: Tensor,
    *,
    temperature: float = 1.0,
    rows_per_chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Sum of `weights` [N] times the divergence of head(hidden [N, H]) from the teacher, both divided by `temperature`.

    Returns the 0-dim sum, differentiable once with respect to hidden, weight and bias, and the divergences [N] without gradient.
    A row of weight 0 has no influence, be its divergence infinite. Raises ValueError on shapes that disagree and unless
    temperature > 0.
    """
    if weights.shape != hidden.shape[:1] or any(part.hidden.shape[:1] != weights.shape for part in teacher):
        shapes = [tuple(part.hidden.shape) for part in teacher]
        raise ValueError(f"rows disagree: hidden {tuple(hidden.shape)}, teacher {shapes}, weights {tuple(weights.shape)}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    kernel = _DivergenceKernel(head, divergence, weights, temperature)
    value = total_loss(hidden, head, kernel, teacher=teacher, rows_per_chunk=rows_per_chunk)
    return value, kernel.per_row


class WeightedRows:
    """Shared base of the `RowKernel`s of losses against a teacher. Each row counts by its weight; a row of weight 0 does not
    count at all, even if its loss is infinite."""

    def __init__(self, head: Head, weights: Tensor, temperature: float) -> None:
        self.head, self.temperature = head, temperature
        self.weights = weights.to(accumulation_dtype(head.weight.dtype))
        self.per_row, self.losses = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        out = self.weights == 0
        self.out = out if bool(out.any()) else None

    def weigh(self, losses: Tensor, product: Tensor, rows: slice) -> Tensor:
        """Keep `losses` [n] of `rows` by their weights. Returns the factors [n] of the dense gradient in `product` [n, V]."""
        torch.mul(self.weights[rows], losses, out=self.losses[rows])
        if self.out is not None:  # 0 * inf is NaN
            self.losses[rows].masked_fill_(self.out[rows], 0.0)
            product.masked_fill_(self.out[rows].unsqueeze(-1), 0.0)
        return self.weights[rows] * (self.head.scale / self.temperature)


class _DivergenceKernel(WeightedRows):
    """`RowKernel` of a divergence."""

    def __init__(self, head: Head, divergence: Divergence, weights: Tensor, temperature: float) -> None:
        super().__init__(head, weights, temperature)
        self.divergence = divergence

    def __call__(self, product: Tensor, teacher: Tensor | None, rows: slice) -> Tensor:
        assert teacher is not None
        if by_triton(product) and isinstance(self.divergence, GeneralizedJSD | TAID | EntropyAwareOPD):
            from composer_replication.distillation.triton_divergence import diverge

            diverge(product, teacher, self.head, self.divergence, self.temperature, self.per_row[rows])
        else:
            _diverge(product, teacher, self.head, self.divergence, self.temperature, self.per_row[rows])
        return self.weigh(self.per_row[rows], product, rows)


def _diverge(student: Tensor, teacher: Tensor, head: Head, divergence: Divergence, temperature: float, losses: Tensor) -> None:
    """Fill the divergences `losses` [n] of head's logits, from the products `student` [n, V], and `teacher` logits [n, V], both
    over `temperature`; overwrite `student` with the gradient with respect to those logits times the slope of the soft cap."""

    def work(block: slice) -> None:
        logits, taught = student[block], teacher[block]
        slope = head.finish_(logits, temperature)
        if temperature != 1.0:
            taught.div_(temperature)
        losses[block] = _rows(divergence, logits, taught)
        if slope is not None:
            logits.mul_(slope)

    for_blocks(student, work)


def _rows(divergence: Divergence, student: Tensor, teacher: Tensor) -> Tensor:
    """Return the losses [n] of a block; its gradient overwrites `student`. Forms without formulas here, and columns of -inf, go
    through autograd on the plain function."""
    finite = bool(torch.isfinite(student.amin()) & torch.isfinite(teacher.amin()))
    if finite and isinstance(divergence, GeneralizedJSD):
        return _jsd(student, teacher, divergence)
    if finite and isinstance(divergence, TAID):
        return _taid(student, teacher, divergence.t)
    if finite and isinstance(divergence, EntropyAwareOPD):
        return _entropy_aware(student, teacher, divergence.h_max)
    with torch.enable_grad():
        leaf = student.detach().clone().requires_grad_()
        losses = divergence.per_token(leaf, teacher)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    student.copy_(gradient)
    return losses.detach()


def _softmax_(logits: Tensor) -> Tensor:
    """Turn logits [n, V] into log-probs in place; returns the probabilities."""
    probs = logits.softmax(-1)
    logits.sub_(logits.amax(-1, keepdim=True) - probs.amax(-1, keepdim=True).log())
    return probs


def _jsd(student: Tensor, teacher: Tensor, options: GeneralizedJSD) -> Tensor:
    beta, clip = options.beta, options.token_clip
    s, t = _softmax_(student), _softmax_(teacher)
    d = teacher.sub_(student)
    if beta == 0.0:
        u = t.neg()
        terms = t * d if clip is not None else _excess(s, t, d).addcmul_(t, d)
    elif beta == 1.0:
        u = torch.addcmul(s, s, d, value=-1.0)
        terms = -(s * d) if clip is not None else _excess(s, t, d).neg_().addcmul_(s, d, value=-1.0)
    else:
        log_m_s = _log_mixture(d, beta)
        u = (s * log_m_s).mul_(beta - 1.0)
        terms = torch.addcmul(u, t, d.sub_(log_m_s), value=beta)
    if clip is not None:
        u.masked_fill_(terms >= clip, 0.0)
        terms.clamp_(max=clip)
    losses = terms.sum(-1)
    torch.addcmul(u, s, u.sum(-1, keepdim=True), value=-1.0, out=student)
    if options.scale == "continuous" and 0.0 < beta < 1.0:
        student.div_(beta * (1.0 - beta))
        losses = losses / (beta * (1.0 - beta))
    return losses


def _excess(s: Tensor, t: Tensor, d: Tensor) -> Tensor:
    """Return s - t to the last digit even where they are nearly equal: -sign(d) max(s, t) (1 - e^-|d|)."""
    return d.abs().neg_().expm1_().mul_(torch.maximum(s, t)).mul_(d.sign())


def _log_mixture(d: Tensor, beta: float) -> Tensor:
    """Return log(m / s) for m = (1 - beta) s + beta t and d = log(t / s): beta e^d + 1 - beta without overflow or lost digits."""
    small = d.abs().neg_().expm1_()  # e^-|d| - 1
    if beta == 0.5:
        small.mul_(0.5)
    else:
        small.mul_((d > 0).to(d.dtype).mul_(1.0 - 2.0 * beta).add_(beta))
    return small.log1p_().add_(d.clamp(min=0.0))


def _taid(student: Tensor, teacher: Tensor, t: float) -> Tensor:
    target = torch.lerp(student, teacher, t)
    s, p = _softmax_(student), target.softmax(-1)
    losses: Tensor = -torch.linalg.vecdot(p, student)
    torch.sub(s, p, out=student)
    return losses


def _entropy_aware(student: Tensor, teacher: Tensor, h_max: float | None) -> Tensor:
    s, t = _softmax_(student), _softmax_(teacher)
    entropy = -torch.linalg.vecdot(t, teacher)
    weight = (entropy / (math.log(student.shape[-1]) if h_max is None else h_max)).clamp(0.0, 1.0)
    d = teacher.sub_(student)
    excess = _excess(s, t, d)
    forward = torch.addcmul(excess, t, d).sum(-1)
    reverse = torch.addcmul(excess, s, d).sum(-1).neg()
    w = weight.unsqueeze(-1)
    # w (s - t) + (1 - w) s (-d - KL(s || t))
    torch.mul(s, d.add_(reverse.unsqueeze(-1)).mul_(w - 1.0), out=student).addcmul_(w, excess)
    losses: Tensor = weight * forward + (1.0 - weight) * reverse
    return losses
