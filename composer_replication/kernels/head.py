"""The language-model head as a value: what turns hidden states into logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """logits = cap(scale * (hidden @ weight.T + bias)), where cap(x) = softcap * tanh(x / softcap), or x without one.

    `scale` covers Cohere's `logit_scale` and Granite's 1 / `logits_scaling`; `softcap` is Gemma's `final_logit_softcapping`.
    """

    weight: Tensor
    """[V, H], any floating-point type."""
    bias: Tensor | None = None
    """[V]."""
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [..., V] of `hidden` [..., H] by ordinary, differentiable operations."""
        logits = torch.nn.functional.linear(hidden, self.weight, self.bias) * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def finish_(self, product: Tensor, temperature: float) -> Tensor | None:
        """Turn `product` = hidden @ weight.T [n, V] into logits / temperature, in place.

        Returns what a gradient with respect to the result must be multiplied by element-wise to get past the soft cap, or None
        without one; the constant factor scale / temperature is left to the caller.
        """
        if self.bias is not None:
            product.add_(self.bias)
        if self.scale != 1.0:
            product.mul_(self.scale)
        slope = None
        if self.softcap is not None:
            product.div_(self.softcap).tanh_()
            slope = torch.addcmul(torch.ones((), dtype=product.dtype, device=product.device), product, product, value=-1.0)
            product.mul_(self.softcap)
        if temperature != 1.0:
            product.div_(temperature)
        return slope


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which logits and gradients of weights of `dtype` are formed: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def autocast_dtype(weight: Tensor) -> torch.dtype | None:
    """Return the dtype to which autocast would round `weight` for a product; None where autocast is off, and for float64."""
    kind = weight.device.type
    on = torch.is_autocast_enabled(kind) and weight.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if on else None


def upcast(logits: Tensor) -> Tensor:
    """Convert bf16 and fp16 to float32, and keep float32 and float64: a softmax over a large vocabulary needs the digits."""
    return logits.to(accumulation_dtype(logits.dtype))
