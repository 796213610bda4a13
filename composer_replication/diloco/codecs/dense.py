"""Codecs that send every value: float32, bfloat16, and integers of 8 or 4 bits that share a scale in groups of 256."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from composer_replication.diloco.codecs.raw import to_bytes, to_tensor

GROUP = 256
"""Values that share a scale."""


class Floats:
    """Values as they are (`fp32`), or rounded to the nearest bfloat16 (`bf16`)."""

    sparse = False

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self._dtype = dtype

    def encode(self, values: Tensor) -> bytes:
        return to_bytes(values.to(self._dtype))

    def decode(self, payload: bytes, size: int) -> Tensor:
        _whole(payload, size * self._dtype.itemsize)
        return to_tensor(payload, self._dtype, size).float()


class Integers:
    """Signed integers of `bits` bits, in multiples of a scale.

    A group's scale is its largest magnitude over the largest integer, kept as a float16 share of the payload's largest scale:
    updates of a learning rate of 1e-6 would vanish in their own float16.
    """

    sparse = False

    def __init__(self, name: str, bits: int) -> None:
        if bits not in (4, 8):
            raise ValueError("integers have 4 or 8 bits")
        self.name = name
        self._bits = bits
        self._most = (1 << (bits - 1)) - 1

    def length(self, size: int) -> int:
        """Return the bytes of the payload of `size` values."""
        return 4 + 2 * -(-size // GROUP) + -(-size * self._bits // 8)

    def encode(self, values: Tensor) -> bytes:
        groups = F.pad(values, (0, -values.numel() % GROUP)).view(-1, GROUP)
        scales = groups.abs().amax(1) / self._most
        unit = scales.max().reshape(1) if scales.numel() else torch.zeros(1)
        shares = (scales / unit.clamp_min(torch.finfo(torch.float32).tiny)).half()
        steps = (shares.float() * unit).unsqueeze(1)
        codes = torch.where(steps > 0, groups / steps, 0.0).round_().clamp_(-self._most, self._most).to(torch.int8)
        return to_bytes(unit) + to_bytes(shares) + to_bytes(self._packed(codes.view(-1)[: values.numel()]))

    def decode(self, payload: bytes, size: int) -> Tensor:
        groups = -(-size // GROUP)
        _whole(payload, self.length(size))
        unit = to_tensor(payload, torch.float32, 1)
        shares = to_tensor(payload, torch.float16, groups, 4)
        codes = self._unpacked(to_tensor(payload, torch.uint8, len(payload) - 4 - 2 * groups, 4 + 2 * groups))
        steps = (shares.float() * unit).unsqueeze(1)
        return (F.pad(codes, (0, groups * GROUP - codes.numel())).view(groups, GROUP) * steps).view(-1)[:size]

    def _packed(self, codes: Tensor) -> Tensor:
        if self._bits == 8:
            return codes
        halves = F.pad(codes, (0, codes.numel() % 2)).view(torch.uint8) & 0xF
        return halves[0::2] | (halves[1::2] << 4)

    def _unpacked(self, packed: Tensor) -> Tensor:
        if self._bits == 8:
            return packed.view(torch.int8).float()
        halves = torch.stack((packed & 0xF, packed >> 4), dim=1).view(-1).to(torch.int8)
        return torch.where(halves > self._most, halves - 16, halves).float()


def _whole(payload: bytes, length: int) -> None:
    if len(payload) != length:
        raise ValueError(f"the payload has {len(payload)} bytes, and {length} are due")
