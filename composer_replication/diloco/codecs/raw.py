"""Tensors as little-endian bytes and back."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

if sys.byteorder != "little":
    raise ImportError("payloads are little-endian, and so has this machine to be")


def to_bytes(values: Tensor) -> bytes:
    """Return the bytes of a tensor on the CPU, in order."""
    return values.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def to_tensor(payload: bytes, dtype: torch.dtype, count: int, offset: int = 0) -> Tensor:
    """Return a (count,) tensor in separate memory, read from `offset` bytes on.

    Raises:
        ValueError: there are not as many.
    """
    end = offset + count * dtype.itemsize
    if len(payload) < end:
        raise ValueError(f"the payload has {len(payload)} bytes, and {count} values of {dtype} end at {end}")
    if count == 0:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(memoryview(payload)[offset:end]), dtype=dtype)
