"""The gradient of a head's weight [V, H], the largest tensor a loss on the head makes, in one buffer for all losses that read it.

Left to autograd, every loss would hold its own buffer until the last of them is there to be added. Instead the gradient so
far passes through the nodes of the losses, from the last to the first:

    weight <- _Handover <- fused_logprobs ... <- _Sum <- total_loss, total_loss ...

- `fused_logprobs` forms its part in the backward pass and adds it to what it is handed.
- `total_loss` forms its part in the forward pass, before the factor is known by which the backward pass scales its loss. Such
  parts are added up as they are, and each loss tells `_Sum` its factor: if all are equal, as those of the terms of one sum are,
  the sum is scaled. Otherwise (a term used alone, or a second pass over a retained graph) the parts are formed again.

Nothing but gradients tells one node of another, so that any backward pass over any part of the graph is right. Losses share a
buffer inside `one_weight_gradient()`. It stays one if those that form their part in the backward pass come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from composer_replication.kernels.head import accumulation_dtype

FormPart: TypeAlias = Callable[[Tensor, Tensor], None]
"""Adds a part of the gradient, times a 0-dim factor, to a buffer [V, H]."""
_MOST = 8
"""Parts that are added up in one buffer."""


class GradientPart(NamedTuple):
    """The part of one loss among those whose parts are summed in the forward pass."""

    buffer: Tensor
    """[V, H] in the accumulation type, what the part is added to; the loss keeps no reference to it."""
    factors: Tensor
    """[_MOST], an input of the loss's node, of which the gradient holds"""
    number: int
    """Index of the entry that receives the factor by which the loss is scaled."""


class WeightGradient:
    """Accumulates the gradient of one weight over all losses on it."""

    def __init__(self, weight: Tensor) -> None:
        apply: Callable[..., Tensor] = _Handover.apply
        self.tip = apply(weight)
        """[V, H] without storage, in the accumulation type. The gradient it receives becomes the weight's."""
        self._parts: _Parts | None = None
        self._factors = self.tip

    def place(self, form: FormPart) -> GradientPart:
        """Reserve the part of a loss that forms it now, without knowing its factor; `form` forms it again if needed."""
        if self._parts is None or len(self._parts.forms) == _MOST:
            self._parts = _Parts(self.tip)
            apply: Callable[..., tuple[Tensor, Tensor]] = _Sum.apply
            self.tip, self._factors = apply(self.tip, self._parts)
        assert self._parts.total is not None  # no backward pass before the losses are there
        self._parts.forms.append(form)
        return GradientPart(self._parts.total, self._factors, len(self._parts.forms) - 1)

    def pass_through(self, tip: Tensor) -> None:
        """Make later losses hand the gradient to `tip` [V, H], whose node adds its own part and hands it to the current tip."""
        self.tip, self._parts = tip, None


_shared: ContextVar[dict[int, WeightGradient] | None] = ContextVar("_shared", default=None)


@contextmanager
def one_weight_gradient() -> Iterator[None]:
    """Make all losses on one weight inside form its gradient in one buffer; they may be used together or separately. A weight
    must live as long as the block."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def gradient_of(weight: Tensor) -> WeightGradient | None:
    """Return the shared gradient of `weight` inside `one_weight_gradient()`; None where no gradient is wanted."""
    if not (torch.is_grad_enabled() and weight.requires_grad):
        return None
    shared = _shared.get()
    if shared is None:
        return WeightGradient(weight)
    if id(weight) not in shared:
        shared[id(weight)] = WeightGradient(weight)
    return shared[id(weight)]


class _Parts:
    """Parts added up, and how each is formed again."""

    def __init__(self, tip: Tensor) -> None:
        self.forms: list[FormPart] = []
        self.total: Tensor | None = tip.new_zeros(tip.shape)
        self._shape = tip.shape

    def scaled(self, factors: Tensor, onto: Tensor | None) -> Tensor:
        """Return `onto` [V, H], if given, plus the sum over the parts of factor times part. Overwrites `onto`."""
        total, self.total = self.total, None
        factors = factors[: len(self.forms)]
        if total is not None and bool((factors == factors[0]).all()):
            total.mul_(factors[0])
            return total if onto is None else total.add_(onto)
        if onto is None:
            onto = factors.new_zeros(self._shape) if total is None else total.zero_()
        for form, factor in zip(self.forms, factors, strict=True):
            if factor != 0:
                form(onto, factor)
        return onto


class _Handover(torch.autograd.Function):
    """Gives the finished gradient to the weight, in the weight's type."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.dtype = weight.dtype
        return weight.new_zeros((), dtype=accumulation_dtype(weight.dtype)).expand(weight.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> Tensor | None:
        return None if gradient is None else gradient.to(ctx.dtype)


class _Sum(torch.autograd.Function):
    """Scales what was formed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, tip: Tensor, parts: _Parts) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.parts = parts
        return tip.new_zeros(()).expand(tip.shape), tip.new_zeros(_MOST)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, later: Tensor | None, factors: Tensor | None) -> tuple[Tensor | None, None]:
        return later if factors is None else ctx.parts.scaled(factors, later), None
