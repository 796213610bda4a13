"""Codecs based on changes of bfloat16 weights (PULSE, arXiv:2602.03839): most small updates change nothing there.

For pseudo-gradients, `Pulse` sends the entries that move a weight to another bfloat16; error feedback keeps the rest till then.
For weights themselves, a patch has the entries that differ and how, and gives the new ones bit for bit.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from composer_replication.diloco.codecs.positions import pack_positions, positions_length, unpack_positions
from composer_replication.diloco.codecs.raw import to_bytes, to_tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LEVELS = {1: 6, 2: 6, 4: 1, 8: 1}
"""Compression level of zlib, by bytes per value: of wide ones nearly all change, and a higher level takes four times as long for
a tenth."""


def visible(values: Tensor, reference: Tensor) -> Tensor:
    """Return the (n,) mask of the entries that change `reference`, in bfloat16, when they are subtracted from it."""
    return (reference - values).bfloat16() != reference.bfloat16()


def patch_length(size: int, count: int) -> int:
    """Return about how many bytes `Pulse` needs for `count` of `size` values."""
    return positions_length(size, count) + 2 * count


class Pulse:
    """The values that are not zero, in bfloat16."""

    name = "pulse"
    sparse = True
    needs_reference = True

    def encode(self, values: Tensor) -> bytes:
        there = values != 0
        return pack_positions(there) + to_bytes(values[there].bfloat16())

    def encode_visible(self, values: Tensor, reference: Tensor) -> bytes:
        return self.encode(torch.where(visible(values, reference), values, 0.0))

    def decode(self, payload: bytes, size: int) -> Tensor:
        indices, at = unpack_positions(payload, size)
        found = to_tensor(payload, torch.bfloat16, indices.numel(), at)
        if len(payload) != at + 2 * indices.numel():
            raise ValueError("the payload is longer than its values")
        values = torch.zeros(size)
        values[indices] = found.float()
        return values


def make_patch(old: Tensor, new: Tensor) -> bytes:
    """Make the patch that turns `old` into `new`.

    Args:
        old: (n,) of 1, 2, 4 or 8 bytes a value.
        new: the same.

    Raises:
        ValueError: they are of different sizes or types, or of other than so many bytes.
    """
    width = old.dtype.itemsize
    if old.shape != new.shape or old.dtype != new.dtype or width not in _INTEGERS:
        raise ValueError(f"no patch from {old.dtype} {tuple(old.shape)} to {new.dtype} {tuple(new.shape)}")
    before, after = (tensor.contiguous().view(-1).view(_INTEGERS[width]) for tensor in (old, new))
    there = before != after
    moved = (after[there] - before[there]).view(torch.uint8).view(-1, width)
    planes = to_bytes(moved.t())  # all lowest bytes, then the next ones: apart, they compress, as most steps are small
    return zlib.compress(pack_positions(there) + planes, _LEVELS[width])


def apply_patch(old: Tensor, patch: bytes) -> Tensor:
    """Return the tensor that `make_patch` was given as `new`.

    Raises:
        ValueError: the bytes are not a patch of as many values.
    """
    most = positions_length(old.numel(), old.numel()) + old.numel() * old.dtype.itemsize
    unpacking = zlib.decompressobj()
    try:
        payload = unpacking.decompress(patch, most + 1)  # a few bytes may stand for any number
    except zlib.error as error:
        raise ValueError(f"the patch cannot be read: {error}") from error
    if len(payload) > most or not unpacking.eof:
        raise ValueError(f"the patch is cut short, or longer than the {most} bytes that {old.numel()} values may take")
    indices, at = unpack_positions(payload, old.numel())
    count = indices.numel()
    width = old.dtype.itemsize
    if len(payload) != at + width * count:
        raise ValueError("the patch is longer than its values")
    planes = to_tensor(payload, torch.uint8, width * count, at).view(width, count)
    new = old.contiguous().view(-1).view(_INTEGERS[width]).clone()
    new[indices] += planes.t().contiguous().view(-1).view(new.dtype)
    return new.view(old.dtype).view(old.shape)
