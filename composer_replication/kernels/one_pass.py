"""One pass over the rows: lm_head, loss and both gradients, a chunk of rows at a time.

With N rows, hidden size H and vocabulary V, a loss on the logits costs four matrix products of N x H x V in all where there are
two sets of logits (student and teacher) and three where there is one: the projections, the gradient of the hidden states and
the gradient of the weight. Forming the gradients while a chunk's logits are at hand needs no more than that; recomputing the
logits in the backward pass, as checkpointing does, needs one or two more. Memory is a few buffers of [chunk, V].

The gradient of a chunk with respect to the product hidden @ weight.T is held as

    row[:, None] * dense

so that scaling by a row's weight is done on the H side, which is smaller than V.

Under autocast, hidden states and weights are rounded to its type before they are multiplied, as a linear layer's are. All else is
as without it: products, losses and gradients are formed and handed on in float32, or float64. On CUDA the product that gives the
gradient of the hidden states reads the dense part rounded to the weight's type, again as a linear layer's backward pass does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from composer_replication.kernels.head import Head, accumulation_dtype, autocast_dtype
from composer_replication.kernels.weight_gradient import GradientPart, gradient_of

CHUNK_BYTES = 1 << 28
"""Most bytes of one [chunk, V] buffer."""
_TILE_COLUMNS = 16_384
"""Columns that are converted at a time where a product has to be formed in a wider type than the weight's."""


class TeacherRows(NamedTuple):
    """One part of the teacher: its logits are the sum of coefficient * head(hidden) over the parts."""

    hidden: Tensor
    """[N, H of the teacher], without gradient."""
    head: Head
    coefficient: float = 1.0


class RowKernel(Protocol):
    """Loss and gradient of some rows."""

    losses: Tensor
    """[N], each row's weighted loss, filled in call by call."""

    def __call__(self, product: Tensor, teacher: Tensor | None, rows: slice) -> Tensor:
        """Overwrite `product` [n, V] = hidden @ weight.T of `rows` with the dense part of the gradient with respect to itself;
        `teacher` [n, V] logits are free to be overwritten. Returns the rows' factors of the dense part, [n]."""
        ...


class Gradients(NamedTuple):
    """Gradients of the sum of the rows' losses; None where not requested. Both in the accumulation type."""

    hidden: Tensor | None
    bias: Tensor | None


def one_pass(
    hidden: Tensor,
    head: Head,
    kernel: RowKernel,
    *,
    teacher: Sequence[TeacherRows] = (),
    wanted: tuple[bool, bool] = (True, True),
    add_to: Tensor | None = None,
    rounded_to: torch.dtype | None = None,
    rows_per_chunk: int | None = None,
) -> Gradients:
    """Run `kernel` over all rows of `hidden` [N, H]; `wanted` says which of the gradients of hidden and bias to form, and that of
    the weight is added to `add_to` [V, H], of the accumulation type. `rounded_to` is the type to which hidden states and weights
    are rounded first."""
    if rounded_to is not None:
        hidden, head, _ = _rounded(TeacherRows(hidden, head), rounded_to)
        teacher = [_rounded(part, rounded_to) for part in teacher]
    with torch.autocast(hidden.device.type, enabled=False):
        return _one_pass(hidden, head, kernel, teacher, wanted, add_to, rows_per_chunk)


def _rounded(part: TeacherRows, dtype: torch.dtype) -> TeacherRows:
    return part._replace(hidden=part.hidden.to(dtype), head=replace(part.head, weight=part.head.weight.to(dtype)))


def _one_pass(
    hidden: Tensor,
    head: Head,
    kernel: RowKernel,
    teacher: Sequence[TeacherRows],
    wanted: tuple[bool, bool],
    grad_weight: Tensor | None,
    rows_per_chunk: int | None,
) -> Gradients:
    n, vocabulary = hidden.shape[0], head.weight.shape[0]
    dtype = accumulation_dtype(head.weight.dtype)
    step = min(max(n, 1), rows_per_chunk or chunk_rows(vocabulary, dtype))
    grad_hidden = hidden.new_zeros(hidden.shape, dtype=dtype) if wanted[0] else None
    grad_bias = hidden.new_zeros(vocabulary, dtype=dtype) if wanted[1] and head.bias is not None else None
    product = hidden.new_empty((step, vocabulary), dtype=dtype)
    taught = torch.empty_like(product) if teacher else None
    part = torch.empty_like(product) if len(teacher) > 1 else None
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        count = rows.stop - start
        z = _mm(hidden[rows], head.weight.t(), out=product[:count])
        factor = kernel(z, None if taught is None else teacher_logits(teacher, rows, taught, part), rows)
        if grad_hidden is not None:
            _mm(z, head.weight, out=grad_hidden[rows]).mul_(factor.unsqueeze(-1))
        if grad_weight is not None:
            _add_outer(grad_weight, z, hidden[rows].to(dtype) * factor.unsqueeze(-1))
        if grad_bias is not None:
            grad_bias.addmv_(z.t(), factor)
    return Gradients(grad_hidden, grad_bias)


def total_loss(
    hidden: Tensor,
    head: Head,
    kernel: RowKernel,
    *,
    teacher: Sequence[TeacherRows] = (),
    rows_per_chunk: int | None = None,
) -> Tensor:
    """Return the 0-dim sum of the kernel's losses, differentiable once with respect to hidden, weight and bias. Under
    `torch.no_grad()` no gradient is formed."""
    rounded_to = autocast_dtype(head.weight)  # the backward pass may be outside of autocast
    run = partial(one_pass, head=head, teacher=teacher, rounded_to=rounded_to, rows_per_chunk=rows_per_chunk)
    still = hidden.detach()

    def form(buffer: Tensor, factor: Tensor) -> None:
        run(still, kernel=_Times(kernel, factor), wanted=(False, False), add_to=buffer)

    gradient = gradient_of(head.weight)
    place = None if gradient is None else gradient.place(form)
    apply: Callable[..., Tensor] = _TotalLoss.apply
    wanted = tuple(torch.is_grad_enabled() and x is not None and x.requires_grad for x in (hidden, head.bias))
    factors = None if place is None else place.factors
    return apply(hidden, head.weight.detach(), head.bias, factors, place, partial(run, kernel=kernel, wanted=wanted), kernel)


class _TotalLoss(torch.autograd.Function):
    """The gradients are formed in the forward pass; the backward pass scales them in place and gives them away, the weight's by
    `WeightGradient`. A second backward pass over a retained graph forms them again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        factors: Tensor | None,
        place: GradientPart | None,
        run: Callable[..., Gradients],
        kernel: RowKernel,
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias, factors)  # the saved weight serves only to detect in-place changes
        ctx.run, ctx.number = run, None if place is None else place.number
        ctx.gradients = run(hidden, add_to=None if place is None else place.buffer)
        return kernel.losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        hidden, _, bias, factors = ctx.saved_tensors
        gradients = ctx.run(hidden) if ctx.gradients is None else ctx.gradients
        ctx.gradients = None
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(upstream)
        of_hidden, of_bias = in_types_of((hidden, bias), gradients)
        if factors is not None:
            factors = torch.zeros_like(factors)
            factors[ctx.number] = upstream
        return of_hidden, None, of_bias, factors, None, None, None


class _Times:
    """A kernel whose gradient is multiplied by a factor."""

    def __init__(self, kernel: RowKernel, factor: Tensor) -> None:
        self.kernel, self.factor, self.losses = kernel, factor, kernel.losses

    def __call__(self, product: Tensor, teacher: Tensor | None, rows: slice) -> Tensor:
        return self.kernel(product, teacher, rows) * self.factor


def in_types_of(inputs: Sequence[Tensor | None], gradients: Gradients) -> tuple[Tensor | None, ...]:
    """Return each gradient in the type of its input (hidden, bias), as autograd wants them."""
    return tuple(None if g is None or x is None else g.to(x.dtype) for g, x in zip(gradients, inputs, strict=True))


def chunk_rows(vocabulary: int, dtype: torch.dtype) -> int:
    """Return the number of rows whose logits fill one buffer of CHUNK_BYTES."""
    return max(1, CHUNK_BYTES // (vocabulary * dtype.itemsize))


def teacher_logits(teacher: Sequence[TeacherRows], rows: slice, out: Tensor, part: Tensor | None) -> Tensor:
    """Write the logits [n, V] of `rows` into the first rows of `out`; `part` is another such buffer, for a teacher of several
    parts."""
    out = out[: rows.stop - rows.start]
    for i, source in enumerate(teacher):
        target = out if i == 0 or part is None else part[: rows.stop - rows.start]
        _mm(source.hidden[rows], source.head.weight.t(), out=target)
        source.head.finish_(target, 1.0)
        if source.coefficient != 1.0:
            target.mul_(source.coefficient)
        if i:
            out.add_(target)
    return out


def logits_of(hidden: Tensor, head: Head) -> Tensor:
    """Return the logits [n, V] of hidden states [n, H] as the losses form them, without gradient: operands rounded where autocast
    is on, sums and result in float32 (or float64)."""
    rounded_to = autocast_dtype(head.weight)
    source = TeacherRows(hidden.detach(), replace(head, weight=head.weight.detach()), 1.0)
    if rounded_to is not None:
        source = _rounded(source, rounded_to)
    product = hidden.new_empty((len(hidden), len(head.weight)), dtype=accumulation_dtype(head.weight.dtype))
    _mm(source.hidden, source.head.weight.t(), out=product)
    source.head.finish_(product, 1.0)
    return product


def _mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """Compute out = a @ b, accumulated and left in the type of `out`, also when `a` or `b` is narrower."""
    if a.dtype == b.dtype == out.dtype:
        return torch.mm(a, b, out=out)
    if out.is_cuda and out.dtype == torch.float32:
        narrow = a.dtype if a.dtype != torch.float32 else b.dtype
        return torch.mm(a.to(narrow), b.to(narrow), out_dtype=torch.float32, out=out)
    a = a.to(out.dtype)
    if b.dtype == out.dtype:
        return torch.mm(a, b, out=out)
    if b.shape[1] >= b.shape[0]:
        for tile in _tiles(b.shape[1]):
            torch.mm(a, b[:, tile].to(out.dtype), out=out[:, tile])
        return out
    out.zero_()
    for tile in _tiles(b.shape[0]):
        out.addmm_(a[:, tile], b[tile].to(out.dtype))
    return out


def _add_outer(total: Tensor, dense: Tensor, scaled_hidden: Tensor) -> None:
    """Compute total [V, H] += dense.T @ scaled_hidden."""
    total.addmm_(dense.t(), scaled_hidden)


def _tiles(columns: int) -> Iterator[slice]:
    for start in range(0, columns, _TILE_COLUMNS):
        yield slice(start, min(start + _TILE_COLUMNS, columns))
