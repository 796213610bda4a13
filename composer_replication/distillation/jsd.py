"""Generalized Jensen-Shannon divergence between student S and teacher T (GKD, arXiv:2306.13649, equation 1).

    M = (1 - b) S + b T        D_b = b KL(T || M) + (1 - b) KL(S || M)

b = 0 means forward KL(T || S) and b = 1 reverse KL(S || T), by special case: D_b itself goes to 0 at both ends like b KL(T
|| S) and (1 - b) KL(S || T), so the "trl" scale (the field's convention) jumps there. The "continuous" scale D_b / (b (1 -
b)) does not.

Everything is a function of d = log T - log S per vocabulary entry, in forms that keep their digits when the divergence is
tiny: each term is non-negative, which is exact because sum S = sum T = 1. Columns that are -inf on both sides contribute 0;
mass where the other side has none gives +inf for the KL that forbids it and a finite value otherwise.
"""

from __future__ import annotations

import math
import warnings
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from composer_replication.distillation._numerics import check_above_zero, check_choice, check_within, log_probs
from composer_replication.kernels import upcast

JsdScale: TypeAlias = Literal["trl", "continuous"]
Reduction: TypeAlias = Literal["batchmean", "sum", "mean", "none"]


def generalized_jsd_per_token(
    student_logits: Tensor,
    teacher_logits: Tensor,
    *,
    beta: float,
    temperature: float = 1.0,
    scale: JsdScale = "trl",
    token_clip: float | None = None,
) -> Tensor:
    """Return D_b per row, in nats: [..., V] and [..., V] -> [...].

    `token_clip` is the upper limit on each vocabulary entry's term before the sum (arXiv:2601.18734).
    `temperature` divides both logits (no T^2 factor). The teacher is detached; bf16 and fp16 are computed in float32. Raises
    ValueError on a shape mismatch, a beta outside [0, 1], a temperature or token_clip not above 0 or an unknown scale. Warns when
    beta is so near an end that the "trl" scale makes the loss more than ten times weaker than at the end itself.
    """
    check_jsd(beta, scale, token_clip)
    _check_shapes(student_logits, teacher_logits)
    warn_if_weak(beta, scale)
    inside = 0.0 < beta < 1.0
    log_s, log_t = log_probs(student_logits, temperature), log_probs(teacher_logits.detach(), temperature)
    terms = _terms(log_s, log_t, beta) if token_clip is None else _clipped_terms(log_s, log_t, beta, token_clip)
    divergence = terms.sum(-1)
    return divergence / (beta * (1.0 - beta)) if inside and scale == "continuous" else divergence


def check_jsd(beta: float, scale: JsdScale = "trl", token_clip: float | None = None) -> None:
    """Raise ValueError on a beta outside [0, 1], an unknown scale and a token_clip that is not above 0."""
    check_within("jsd beta", beta, 0.0, 1.0)
    check_choice("jsd scale", scale, get_args(JsdScale))
    if token_clip is not None:
        check_above_zero("token_clip", token_clip)


def warn_if_weak(beta: float, scale: JsdScale) -> None:
    """Warn when `beta` is so near an end that the "trl" scale makes D_b more than ten times weaker than at the end itself."""
    if scale == "trl" and 0.0 < beta < 1.0 and not 0.05 <= beta <= 0.95:
        warnings.warn(
            f"jsd beta={beta} makes D_b far weaker than the KL at the end it is near; use beta 0 or 1, or scale 'continuous'",
            stacklevel=3,
        )


def divergence_of_log_probs(log_s: Tensor, log_t: Tensor, beta: float) -> Tensor:
    """Return D_b per row of two distributions given as log-probs [..., K] -> [...]. Raises ValueError on a beta outside [0,
    1]."""
    check_jsd(beta)
    _check_shapes(log_s, log_t)
    return _terms(log_s, log_t, beta).sum(-1)


def generalized_jsd_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor | None = None,
    beta: float = 0.5,
    temperature: float = 1.0,
    reduction: Reduction = "batchmean",
    logits_are_probs: bool = False,
    top_k: int | None = None,
    token_clip: float | None = None,
) -> Tensor:
    """Return D_b between [..., T, V] logits, reduced; it has the signature of GKD's and OPSD's `generalized_jsd_loss`.

    - `labels` [..., T]: rows labelled -100 are left out (gathered away before any softmax).
    - `reduction`: `batchmean` divides the sum by the number of rows kept when there are labels, by the FIRST dimension when
      there are none; `sum`; `mean` divides by rows and vocabulary; `none` returns the terms per row and vocabulary entry,
      [n, V] with labels.
    - `logits_are_probs`: the inputs are probabilities; the temperature must then be 1.
    - `top_k`: only the TEACHER's k likeliest entries, both sides renormalised over them, no tail bucket.
    - `token_clip`: upper limit on each vocabulary entry's term before the sum over the vocabulary (arXiv:2601.18734);
      biased, and without gradient where it applies.

    Nothing kept gives 0 with zero gradients. Raises ValueError on mismatched shapes or bad arguments.
    """
    check_jsd(beta, token_clip=token_clip)
    _check_shapes(student_logits, teacher_logits)
    if reduction not in ("batchmean", "sum", "mean", "none"):
        raise ValueError(f"unknown reduction {reduction!r}: expected 'batchmean', 'sum', 'mean' or 'none'")
    rows = student_logits.shape[0]
    if labels is not None:
        if labels.shape != student_logits.shape[:-1]:
            raise ValueError(f"labels {tuple(labels.shape)} do not match logits {tuple(student_logits.shape)}")
        student_logits, teacher_logits = student_logits[labels != -100], teacher_logits[labels != -100]
        rows = student_logits.shape[0]
    teacher_logits = teacher_logits.detach()
    if logits_are_probs:
        if temperature != 1.0:
            raise ValueError("logits_are_probs=True needs temperature 1: a temperature applies to logits")
        probs = upcast(student_logits)
        student_logits = probs.clamp(min=torch.finfo(probs.dtype).tiny).log()  # the gradient of log 0 would be NaN
        teacher_logits = upcast(teacher_logits).log()
    if top_k is not None:
        check_within("top_k", top_k, 1)
        support = teacher_logits.topk(top_k, dim=-1).indices
        student_logits, teacher_logits = student_logits.gather(-1, support), teacher_logits.gather(-1, support)
    log_s, log_t = log_probs(student_logits, temperature), log_probs(teacher_logits, temperature)
    if token_clip is not None:
        terms = _clipped_terms(log_s, log_t, beta, token_clip)
    else:
        terms = _plain_terms(log_s, log_t, beta) if reduction == "none" else _terms(log_s, log_t, beta)
    if reduction == "none":
        return terms
    divisor = {"batchmean": rows, "sum": 1, "mean": terms.numel()}[reduction]
    return terms.sum() / max(divisor, 1)


def _check_shapes(student_logits: Tensor, teacher_logits: Tensor) -> None:
    if student_logits.shape != teacher_logits.shape:
        raise ValueError(
            f"student logits {tuple(student_logits.shape)} and teacher logits {tuple(teacher_logits.shape)} differ in shape"
        )


def _terms(log_s: Tensor, log_t: Tensor, beta: float) -> Tensor:
    """Return terms [..., V] that are each >= 0 and sum to the divergence."""
    if 0.0 < beta < 1.0:
        return _plain_terms(log_s, log_t, beta)
    s, t = log_s.exp(), log_t.exp()
    d, _, _ = _log_ratio(log_s, log_t)
    near = d.abs() <= 1.0
    small = torch.where(near, d, 0.0)
    if beta == 0.0:  # KL(T || S): t (e^-d - 1 + d), and t e^-d = s
        return torch.where(near, t * (torch.expm1(-small) + small), s - t + _product(t, d))
    return torch.where(
        near, s * (torch.expm1(small) - small), t - s - _product(s, d)
    )  # KL(S || T): s (e^d - 1 - d), and s e^d = t


def _plain_terms(log_s: Tensor, log_t: Tensor, beta: float) -> Tensor:
    """Return the textbook terms [..., V]: t d at b = 0, -s d at b = 1, b t log(t / m) + (1 - b) s log(s / m) between."""
    s, t = log_s.exp(), log_t.exp()
    d, no_s, no_t = _log_ratio(log_s, log_t)
    if beta == 0.0:
        return _product(t, d)
    if beta == 1.0:
        return -_product(s, d)
    positive = d > 0  # one branch per sign, so that no exponential overflows
    up, down = torch.where(positive, d, 0.0), torch.where(positive, 0.0, d)
    up = up.masked_fill(no_s, 0.0)
    from_t = torch.log1p((1.0 - beta) * torch.expm1(-up))  # log(m / t) where d > 0
    from_s = torch.log1p(beta * torch.expm1(down))  # log(m / s) where d <= 0
    log_m_t = torch.where(positive, from_t, from_s - down.masked_fill(no_t, 0.0)).masked_fill(no_s, 0.0)
    log_m_s = torch.where(positive, up + from_t, from_s).masked_fill(no_s, 0.0)
    only_t = torch.where(no_s, -math.log(beta) * t, 0.0)  # m = b t there
    return beta * (only_t - t * log_m_t) - (1.0 - beta) * s * log_m_s


def _clipped_terms(log_s: Tensor, log_t: Tensor, beta: float, clip: float) -> Tensor:
    """Return the textbook terms, each at most `clip`. Terms of the reverse KL that would be infinite are constants: clamping them
    would leave 0 * inf in the gradient."""
    if beta < 1.0:
        return _plain_terms(log_s, log_t, beta).clamp(max=clip)
    infinite = (log_t == -torch.inf) & (log_s != -torch.inf)
    finite = _plain_terms(log_s, torch.where(infinite, log_s.detach(), log_t), beta).clamp(max=clip)
    return torch.where(infinite, clip, finite)


def _log_ratio(log_s: Tensor, log_t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return d = log t - log s, with 0 where both are -inf, and the masks where the student and the teacher have no mass."""
    no_s, no_t = log_s == -torch.inf, log_t == -torch.inf
    return (log_t - log_s).masked_fill(no_s & no_t, 0.0), no_s, no_t


def _product(p: Tensor, d: Tensor) -> Tensor:
    """Return p * d with 0 * inf = 0."""
    zero = p == 0
    return torch.where(zero, 0.0, p * d.masked_fill(zero, 0.0))
