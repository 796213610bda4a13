"""State dicts as flat shards of one type each, and back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from composer_replication.diloco.wire import Count, DamagedError
from composer_replication.types.errors import ConfigError

_TYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint8", "bool", "complex64"),
)
"""Types that safetensors can store."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Tensors of one type, one after the other."""

    dtype: str
    tensors: tuple[tuple[str, tuple[Count, ...]], ...]
    """Name and shape."""

    @property
    def size(self) -> int:
        """Values in all."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @property
    def type(self) -> torch.dtype:
        """The type that `dtype` names.

        Raises:
            DamagedError: nothing that can be published.
        """
        if self.dtype not in _TYPES:
            raise DamagedError(f"a shard of the type {self.dtype!r}")
        found: torch.dtype = getattr(torch, self.dtype)
        return found


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Position of each tensor of a state dict in its shards."""

    shards: tuple[Shard, ...]
    tied: tuple[tuple[str, str], ...]
    """(name, name of the tensor that it shares memory with)."""


def lay_out(state: Mapping[str, Tensor], shard_bytes: int) -> StateLayout:
    """Return shards of at most `shard_bytes`, or of one larger tensor; the same for every state of the same model.

    Raises:
        ConfigError: an entry is not a dense tensor, or of a type that safetensors does not know.
    """
    owners: dict[tuple[Any, ...], str] = {}
    tied: list[tuple[str, str]] = []
    open_: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    filled: dict[str, int] = {}
    shards: list[Shard] = []
    for name, tensor in state.items():
        dtype = _checked(name, tensor)
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        owner = owners.setdefault(place, name) if tensor.numel() else name
        if owner != name:
            tied.append((name, owner))
            continue
        length = tensor.numel() * tensor.dtype.itemsize
        if open_.get(dtype) and filled[dtype] + length > shard_bytes:
            shards.append(Shard(dtype, tuple(open_.pop(dtype))))
        if dtype not in open_:
            open_[dtype], filled[dtype] = [], 0
        open_[dtype].append((name, tuple(tensor.shape)))
        filled[dtype] += length
    shards += [Shard(dtype, tuple(tensors)) for dtype, tensors in open_.items()]
    return StateLayout(tuple(shards), tuple(tied))


def flatten(state: Mapping[str, Tensor], shard: Shard) -> Tensor:
    """Return (size,) on the CPU, in separate memory."""
    flat = torch.empty(shard.size, dtype=shard.type)
    at = 0
    for name, shape in shard.tensors:
        flat[at : at + math.prod(shape)].copy_(state[name].detach().reshape(-1))
        at += math.prod(shape)
    return flat


def unflatten(layout: StateLayout, flats: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the tensors, as views of the shards; those that were tied are one object."""
    state: dict[str, Tensor] = {}
    for shard, flat in zip(layout.shards, flats, strict=True):
        state.update(_views(shard, flat))
    return state | {name: state[owner] for name, owner in layout.tied}


def content_of(flat: Tensor) -> str:
    """Return the SHA-256 of the type and all bits of a shard, in hexadecimal."""
    found = hashlib.sha256(str(flat.dtype).removeprefix("torch.").encode())
    found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()


def write_full(shard: Shard, flat: Tensor) -> bytes:
    """Write a safetensors file of the shard."""
    return save({name: view.clone() for name, view in _views(shard, flat).items()})


def read_full(shard: Shard, data: bytes) -> Tensor:
    """Read the (size,) values of such a file.

    Raises:
        DamagedError: it has other tensors than the shard.
    """
    try:
        state = load(data)
    except (SafetensorError, KeyError, ValueError) as error:
        raise DamagedError(f"it is not a safetensors file: {error}") from error
    if {(name, tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()} != {
        (name, shape, shard.type) for name, shape in shard.tensors
    }:
        raise DamagedError("it has other tensors than its manifest says")
    return flatten(state, shard)


def _views(shard: Shard, flat: Tensor) -> dict[str, Tensor]:
    parts = flat.split_with_sizes([math.prod(shape) for _, shape in shard.tensors])
    return {name: part.view(shape) for (name, shape), part in zip(shard.tensors, parts, strict=True)}


def _checked(name: str, tensor: object) -> str:
    """Return the name of the type of an entry of a state dict."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        found = type(tensor).__name__ if not isinstance(tensor, Tensor) else f"a tensor on {tensor.device}, {tensor.layout}"
        raise ConfigError(
            f"{name!r} of the state dict is not a dense tensor but {found}", fix="publish dense tensors with values"
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _TYPES:
        raise ConfigError(f"{name!r} of the state dict is of the type {dtype}", fix=f"convert it to one of {', '.join(_TYPES)}")
    return dtype
