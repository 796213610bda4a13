"""Modes of a model: its wrappers, dropout off for a while, and updates of the policy that sampled."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from composer_replication.types.errors import ModelError

_COMPUTE_DTYPE = "_composer_compute_dtype"
"""Where a model keeps its `compute_dtype`: among its own attributes, which copies of it keep."""


def unwrapped(model: nn.Module) -> Any:
    """Return the Hugging Face model inside DistributedDataParallel and other wrappers that keep it as `.module`."""
    inner: Any = model
    while not hasattr(inner, "get_output_embeddings") and isinstance(getattr(inner, "module", None), nn.Module):
        inner = inner.module
    return inner


def arguments_of(model: nn.Module) -> frozenset[str]:
    """Return the names that the forward pass of a Hugging Face model takes, inside every wrapper."""
    inner = unwrapped(model)
    inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner  # a PEFT wrapper hides the signature
    return frozenset(inspect.signature(inner.forward).parameters)


def cache_argument(model: nn.Module) -> str:
    """Return the name under which `model` takes a transformers cache: `cache`, or `past_key_values` before transformers 5.24 and
    in model code of its own.

    Raises ModelError on a model that takes none.
    """
    taken = arguments_of(model)
    for name in ("cache", "past_key_values"):
        if name in taken:
            return name
    raise ModelError(
        f"{type(unwrapped(model)).__name__} keeps its state in its own form: it takes neither `cache` nor `past_key_values`",
        fix="use a model that takes a transformers cache",
    )


def in_lockstep(model: nn.Module) -> bool:
    """Return whether all ranks must make the same forward passes of `model` in the same order, because each pass is collective:
    DDP broadcasts buffers, FSDP2 gathers weights. Raises ModelError on a model under FSDP1."""
    return bool(sharded_units(model)) or any(isinstance(module, DistributedDataParallel) for module in model.modules())


def lockstep_groups(model: nn.Module) -> list[Any]:
    """Return the process groups whose ranks are `in_lockstep`: reducing over one after the other reaches all of them. None among
    them is the default group."""
    groups: list[Any] = [module.process_group for module in model.modules() if isinstance(module, DistributedDataParallel)]
    if sharded_units(model):  # weights that are whole for a while name no mesh
        mesh = next((parameter.device_mesh for parameter in model.parameters() if hasattr(parameter, "device_mesh")), None)
        groups += [None] if mesh is None else mesh.get_all_groups()
    return groups


def sharded_units(model: nn.Module) -> list[Any]:
    """Return the modules of `model` that FSDP2 gathers and reshards as one, outer ones first. Raises ModelError on one under
    FSDP1."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel  # takes a second

    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise ModelError(
            "FullyShardedDataParallel (FSDP1) keeps the weight of the output head whole only inside its own forward pass",
            fix="shard the model by FSDP2: torch.distributed.fsdp.fully_shard",
        )
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def set_compute_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Let `computing` multiply `model`'s matrices in `dtype`, and those of copies that are made of it from now on."""
    unwrapped(model).__dict__[_COMPUTE_DTYPE] = dtype


def compute_dtype(model: nn.Module) -> torch.dtype | None:
    """Return the type that `set_compute_dtype` has given `model`; None where it computes in the type of its weights."""
    found: torch.dtype | None = unwrapped(model).__dict__.get(_COMPUTE_DTYPE)
    return found


def computing(model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which `model` computes as precisely as it was loaded to: autocast, or nothing."""
    dtype = compute_dtype(model)
    if dtype is None:
        return nullcontext()
    whole = not sharded_units(model)  # else the casts of all weights would outlive their shares' gathering
    return torch.autocast(next(model.parameters()).device.type, dtype, cache_enabled=whole)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Disable gradient and dropout inside, and compute as `computing` does; every submodule gets its own mode back."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with without_gradient(model):
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def without_gradient(model: nn.Module) -> Iterator[None]:
    """Disable gradient inside, and compute as `computing` does, in the mode that the model is in."""
    try:
        with torch.no_grad(), computing(model):
            yield
    finally:
        torch.clear_autocast_cache()  # older torch takes weights cast in here for a later pass with gradient: pytorch #112583


def update_mode(model: nn.Module) -> None:
    """Turn dropout off, which would make the policy differ from the one that sampled, and gradient checkpointing on where it was
    enabled."""
    model.eval()
    for module in _checkpointed(model):
        module.training = True  # without train mode it does not checkpoint; its submodules keep their mode


def enable_checkpointing(model: nn.Module, **options: Any) -> None:
    """Let `update_mode` switch on gradient checkpointing. `options` go to `torch.utils.checkpoint.checkpoint`.

    Raises ModelError where the model has none.
    """
    inner = unwrapped(model)
    enable = getattr(inner, "activation_checkpointing_enable", None) or inner.gradient_checkpointing_enable  # before 5.20
    try:
        enable({"use_reentrant": False, **options})
    except ValueError as error:
        raise ModelError(str(error), fix="set optimizer.gradient_checkpointing = false") from error
    for module in _checkpointed(inner):
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):  # a layer that drops without a module for it
                setattr(module, name, 0.0)


def _checkpointed(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]


def compile_blocks(model: nn.Module, *, backend: str = "inductor") -> None:
    """Compile what the model's repeated blocks consist of, in place: feed-forward layers and norms. Those of all blocks share one
    compilation.

    Attention is left out: what it reads from a cache would be compiled anew for each block, until dynamo gives up. So is the
    output head, which losses replace. Raises ModelError where the model does not name its blocks.
    """
    kinds: Any = getattr(unwrapped(model), "_no_split_modules", None) or ()
    blocks = [module for module in model.modules() if type(module).__name__ in kinds]
    parts = [part for block in blocks for part in block.children() if not _reads_cache(part)]
    if not parts:
        raise ModelError(f"{type(unwrapped(model)).__name__} does not name its blocks", fix="set model.compile = false")
    for part in parts:
        part.compile(dynamic=True, backend=backend)


def _reads_cache(part: nn.Module) -> bool:
    taken = inspect.signature(part.forward).parameters
    return any(name in taken for name in ("cache", "past_key_values", "layer_past"))


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a sharded model's whole state dict on the first rank's CPU, and an empty one on the others.

    Collective: call it on every rank.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    found: dict[str, Any] = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return found
