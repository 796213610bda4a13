"""Norms that compute in the type that they are given: transformers' compute in float32, also in a float64 model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ExactNorm(nn.Module):
    """A root mean square norm with the weight of another."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        return self.weight * (hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.epsilon))


def with_exact_norms(model: Any) -> Any:
    """Replace the norms of a model: its gradients then agree to 1e-9, whatever is read beside what."""
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if type(part).__name__.endswith("RMSNorm"):
                setattr(module, name, ExactNorm(part))
    return model
