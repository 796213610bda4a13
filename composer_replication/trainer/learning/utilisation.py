"""How much of a device an update uses: the operations that the model needs, beside what a product of matrices attains."""

from __future__ import annotations

import time
from functools import lru_cache

import torch
from torch import nn

from composer_replication.loss.forward import compute_dtype

_SIZE = {"cuda": 8192, "cpu": 512}
"""Rows and columns of the matrices that are multiplied, by type of the device: large enough to use all of it."""
_TIMES = 4
"""Products that are timed; the fastest counts, because the first ones load code and raise clocks."""


def operations_per_token(model: nn.Module) -> float:
    """Return the floating-point operations that a forward and a backward pass need for a token.

    A weight costs 2 in the forward pass, 2 for the gradient of what goes in, and 2 for its own where it is trained (Kaplan et
    al., arXiv:2001.08361, section 2.1). Input embeddings are looked up and cost nothing, unless the head shares them. Of a
    mixture's experts those count that a token goes through. Attention scores are left out, and so is what activation
    checkpointing computes twice: this is what the model needs, not what is spent.
    """
    config = getattr(model, "config", None)
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    looked_up = None if embedding is None or getattr(config, "tie_word_embeddings", False) else embedding.weight
    active = _share_of_experts(config)
    total = 0.0
    for name, parameter in model.named_parameters():
        if parameter is not looked_up and parameter.dim() > 1:
            share = active if ".experts." in name else 1.0
            total += share * parameter.numel() * (6 if parameter.requires_grad else 4)
    return total


def _share_of_experts(config: object) -> float:
    """Return the share of a mixture's experts that a token goes through; 1 where the configuration names no such numbers."""
    every = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    chosen = getattr(config, "num_experts_per_tok", None)
    return chosen / every if every and chosen else 1.0


def utilisation(model: nn.Module, tokens_per_s: float, devices: int) -> float:
    """Return the operations that so many tokens a second need, as a share of what so many devices like the model's attain in the
    type that it computes in."""
    weight = next(model.parameters())
    return (
        tokens_per_s * operations_per_token(model) / (attainable(weight.device, compute_dtype(model) or weight.dtype) * devices)
    )


@lru_cache
def attainable(device: torch.device, dtype: torch.dtype) -> float:
    """Return the floating-point operations a second that the product of two large square matrices attains, measured once."""
    size = _SIZE.get(device.type, _SIZE["cpu"])
    matrix = torch.ones(size, size, device=device, dtype=dtype)
    seconds = []
    for _ in range(_TIMES):
        _wait_for(device)
        began = time.perf_counter()
        matrix @ matrix
        _wait_for(device)
        seconds.append(time.perf_counter() - began)
    return 2.0 * size**3 / min(seconds)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
