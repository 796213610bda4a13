"""A policy whose weights are sharded over processes by FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from composer_replication.loss.forward.adapters import has_adapters
from composer_replication.loss.forward.modes import sharded_units


def shard(model: nn.Module) -> None:
    """Share the weights out among all ranks, in place, one layer at a time. The processes must know each other by now."""
    from torch.distributed.device_mesh import init_device_mesh  # takes a second, as the next one
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
    types = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # gradients of bfloat16 weights are summed exactly, too
    layers: Any = getattr(model, "_no_split_modules", None) or ()
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, mp_policy=types)
    fully_shard(model, mesh=mesh, mp_policy=types)


def whole(tensor: Any) -> Tensor:
    """Gather a sharded tensor, which every rank has to do at the same time; return others unchanged."""
    gathered: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor that this process has; others as they are."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def load_whole_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load whole weights into a sharded model: every rank passes all of them and keeps its share. Weights that the model has
    besides are left as they are: of one with adapters only those are loaded."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    for unit in sharded_units(model):
        unit.reshard()  # a pass without gradient leaves some whole
    options = StateDictOptions(full_state_dict=True, strict=not has_adapters(model))
    set_model_state_dict(model, dict(weights), options=options)


def on_first_rank(state: Any) -> Any:
    """Return an optimizer's state with every tensor whole, on the first rank's CPU; the other ranks get None for a tensor."""
    if isinstance(state, Mapping):
        return {key: on_first_rank(value) for key, value in state.items()}
    if isinstance(state, list):
        return [on_first_rank(value) for value in state]
    if not isinstance(state, Tensor):
        return state
    found = whole(state)
    return found.detach().cpu() if torch.distributed.get_rank() == 0 else None


def load_whole_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Give an optimizer over sharded weights the state that one process has; every rank gives all of it and keeps its share."""
    from torch.distributed.tensor import distribute_tensor

    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))

    def share(number: int, value: Any) -> Any:
        owner: Any = parameters[number]
        if not isinstance(value, Tensor) or value.shape != owner.shape or not hasattr(owner, "device_mesh"):
            return value  # the count of steps, say
        return distribute_tensor(value.to(owner.device), owner.device_mesh, owner.placements)

    shares = {number: {name: share(number, v) for name, v in values.items()} for number, values in state["state"].items()}
    optimizer.load_state_dict({**state, "state": shares})
