"""A policy whose weights are shared out among processes by FSDP2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["shard", "whole"]


def shard(model: nn.Module) -> None:
    """Share the weights out among all ranks, in place, one layer at a time. The processes must know each other by now."""
    from torch.distributed.device_mesh import init_device_mesh  # takes a second, as the next one
    from torch.distributed.fsdp import fully_shard

    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
    layers: Any = getattr(model, "_no_split_modules", None) or ()
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def whole(tensor: Any) -> Tensor:
    """A sharded tensor gathered, which every rank has to ask for at the same time; others as they are."""
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered
