"""The divergences' work on a chunk's [n, V] products and teacher logits, as a Triton kernel that reads every pair of rows two or
three times and writes one of them once.

The formulas are those of `fused.py`. The gradient u - s * sum(u) is blind to a multiple of s in u, and u is taken such that it is
small where the divergence is: s - t for KL(t || s), -s d for KL(s || t), the same for the rest.

Triton reads annotations: this file does not postpone them.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from composer_replication.distillation.divergence import TAID, EntropyAwareOPD, GeneralizedJSD
from composer_replication.kernels import Head
from composer_replication.kernels.triton_rows import (
    NOTHING,
    expm1_of_minus,
    gather,
    load_logits,
    merge,
    of_head,
    of_vocabulary,
)


def diverge(
    student: Tensor,
    teacher: Tensor,
    head: Head,
    divergence: GeneralizedJSD | TAID | EntropyAwareOPD,
    temperature: float,
    losses: Tensor,
) -> None:
    """Fill the divergences `losses` [n] of head's logits, from the products `student` [n, V], and `teacher` logits [n, V], both
    over `temperature`; overwrite `student` with the gradient with respect to those logits times the slope of the soft cap.

    All float32 and contiguous. The teacher stays as it is.
    """
    rows, vocabulary = student.shape
    with torch.cuda.device_of(student):
        _diverge[(rows,)](
            student,
            teacher,
            losses,
            vocabulary,
            1.0 / temperature,
            **_of_divergence(divergence, vocabulary),
            **of_head(head, temperature),
            **of_vocabulary(vocabulary),
        )


def _of_divergence(divergence: GeneralizedJSD | TAID | EntropyAwareOPD, vocabulary: int) -> dict[str, Any]:
    """FORM and what it knows: `parameter` is the beta of "between", t of "taid", h_max of "entropy"."""
    options = {"parameter": 0.0, "clip": 0.0, "factor": 1.0, "CLIPPED": False}
    if isinstance(divergence, TAID):
        # at t = 1 the target may have mass where the student has none, and there the loss does not look
        return {**options, "FORM": "taid", "parameter": float(divergence.t), "BALANCED": divergence.t < 1.0}
    if isinstance(divergence, EntropyAwareOPD):
        h_max = math.log(vocabulary) if divergence.h_max is None else divergence.h_max
        return {**options, "FORM": "entropy", "parameter": float(h_max), "BALANCED": False}
    beta, clip = divergence.beta, divergence.token_clip
    if clip is not None:
        options |= {"clip": float(clip), "CLIPPED": True}
    if beta in (0.0, 1.0):
        return {**options, "FORM": "reverse" if beta else "forward", "BALANCED": not beta and clip is None}
    factor = 1.0 / (beta * (1.0 - beta)) if divergence.scale == "continuous" else 1.0
    return {**options, "FORM": "between", "parameter": float(beta), "factor": factor, "BALANCED": False}


@triton.jit
def _diverge(
    student: tl.tensor,
    teacher: tl.tensor,
    losses: tl.tensor,
    vocabulary: tl.tensor,
    cooler: tl.tensor,
    parameter: tl.tensor,
    clip: tl.tensor,
    factor: tl.tensor,
    FORM: tl.constexpr,
    CLIPPED: tl.constexpr,
    BALANCED: tl.constexpr,
    bias: tl.tensor,
    inner: tl.tensor,
    outer: tl.tensor,
    CAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """BALANCED says that u sums to nothing: the gradient is then u, and no third reading is needed."""
    row = tl.program_id(0).to(tl.int64)
    student += row * vocabulary
    teacher += row * vocabulary
    lanes = tl.arange(0, BLOCK)
    nothing = tl.zeros((BLOCK,), tl.float32)

    top_s, total_s, moment_s = nothing + NOTHING, nothing, nothing
    top_t, total_t, moment_t = nothing + NOTHING, nothing, nothing
    for start in range(0, vocabulary, BLOCK):
        columns = start + lanes
        x, _ = load_logits(student, bias, columns, columns < vocabulary, inner, outer, CAPPED)
        y = _load_teacher(teacher, x, columns, columns < vocabulary, cooler, parameter, FORM)
        top_s, total_s, moment_s = gather(x, top_s, total_s, moment_s)
        top_t, total_t, moment_t = gather(y, top_t, total_t, moment_t)
    highest_s, whole_s, _entropy_s = merge(top_s, total_s, moment_s)
    highest_t, whole_t, entropy_t = merge(top_t, total_t, moment_t)
    log_s, log_t = tl.log(whole_s), tl.log(whole_t)
    if FORM == "entropy":
        parameter = tl.minimum(tl.maximum(entropy_t / parameter, 0.0), 1.0)

    loss, tilt = nothing, nothing
    for start in range(0, vocabulary, BLOCK):
        columns = start + lanes
        x, slope = load_logits(student, bias, columns, columns < vocabulary, inner, outer, CAPPED)
        y = _load_teacher(teacher, x, columns, columns < vocabulary, cooler, parameter, FORM)
        term, u, _ = _entries(x, highest_s, log_s, y, highest_t, log_t, parameter, clip, FORM, CLIPPED)
        loss += term
        tilt += u
        if BALANCED:
            tl.store(student + columns, u * factor * slope, mask=columns < vocabulary)
    tl.store(losses + row, tl.sum(loss, 0) * factor)

    if not BALANCED:
        lean = tl.sum(tilt, 0)
        for start in range(0, vocabulary, BLOCK):
            columns = start + lanes
            x, slope = load_logits(student, bias, columns, columns < vocabulary, inner, outer, CAPPED)
            y = _load_teacher(teacher, x, columns, columns < vocabulary, cooler, parameter, FORM)
            _, u, s = _entries(x, highest_s, log_s, y, highest_t, log_t, parameter, clip, FORM, CLIPPED)
            tl.store(student + columns, (u - s * lean) * factor * slope, mask=columns < vocabulary)


@triton.jit
def _load_teacher(
    teacher: tl.tensor,
    x: tl.tensor,
    columns: tl.tensor,
    within: tl.tensor,
    cooler: tl.tensor,
    t: tl.tensor,
    FORM: tl.constexpr,
) -> tl.tensor:
    """Load the teacher's logits over the temperature, or TAID's mixture of them with the student's x; -inf where not `within`."""
    y = tl.load(teacher + columns, mask=within, other=float("-inf")) * cooler
    if FORM == "taid":  # no products at the ends: 0 * -inf is NaN
        y = tl.where(t == 1.0, 0.0, (1.0 - t) * x) + tl.where(t == 0.0, 0.0, t * y)
    return y


@triton.jit
def _entries(
    x: tl.tensor,
    highest_s: tl.tensor,
    log_s: tl.tensor,
    y: tl.tensor,
    highest_t: tl.tensor,
    log_t: tl.tensor,
    parameter: tl.tensor,
    clip: tl.tensor,
    FORM: tl.constexpr,
    CLIPPED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the term, u and s at some columns of student logits x and teacher logits y, with the maxima and the logs of the sums
    of exponentials of both rows."""
    log_of_s = x - highest_s - log_s
    d = y - x - ((highest_t - highest_s) + (log_t - log_s))
    d = tl.where(tl.maximum(x, y) == float("-inf"), 0.0, d)
    ahead = d > 0.0
    fall, power = expm1_of_minus(tl.abs(d))
    larger = tl.exp(tl.where(ahead, y - highest_t - log_t, log_of_s))
    s = larger * tl.where(ahead, power, 1.0)
    t = larger * tl.where(ahead, 1.0, power)
    excess = larger * tl.where(ahead, fall, -fall)  # s - t

    if FORM == "forward":
        term, u = _times(t, d), excess
        if CLIPPED:
            u = tl.where(term >= clip, s, u)
        else:
            term += excess
    elif FORM == "reverse":
        term = -_times(s, d)
        u = term
        if CLIPPED:
            u = tl.where(term >= clip, -s, u)
        else:
            term -= excess
    elif FORM == "between":
        log_m = _log1p(tl.where(ahead, 1.0 - parameter, parameter) * fall)  # over the larger of s and t
        u = (parameter - 1.0) * _times(s, tl.maximum(d, 0.0) + log_m)
        term = u + parameter * _times(t, tl.minimum(d, 0.0) - log_m)
        if CLIPPED:
            u = tl.where(term >= clip, 0.0, u)
    elif FORM == "taid":  # columns that are impossible for the student are left out
        term = -tl.where(x == float("-inf"), 0.0, t * log_of_s)
        u = tl.where(x == float("-inf"), 0.0, excess)
    else:
        surprise = _times(s, d)
        term = parameter * (excess + _times(t, d)) - (1.0 - parameter) * (excess + surprise)
        u = parameter * excess - (1.0 - parameter) * surprise
    if CLIPPED:
        term = tl.where(term >= clip, clip, term)
    return term, u, s


@triton.jit
def _times(p: tl.tensor, d: tl.tensor) -> tl.tensor:
    """Return p * d with 0 * inf = 0."""
    return tl.where(p == 0.0, 0.0, p * d)


@triton.jit
def _log1p(x: tl.tensor) -> tl.tensor:
    """Return log(1 + x) for x > -1, with what rounding took from 1 + x."""
    near = 1.0 + x
    return tl.log(near) - (near - 1.0 - x) / near
