"""A small network whose parameters an optimizer can step: for tests of optimizers."""

from __future__ import annotations

import torch
from torch import nn


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64)).to(dtype)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """One step on the clipped gradient of a loss that `seed` decides."""
    optimizer.zero_grad()
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(seed)).to(next(model.parameters()).dtype)
    model(x).float().square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()


def values(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])
