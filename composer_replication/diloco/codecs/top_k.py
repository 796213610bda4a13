"""The largest values of each block, in two bits each (SparseLoCo, arXiv:2508.15706); error feedback keeps the others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from composer_replication.diloco.codecs.raw import to_bytes, to_tensor

BLOCK = 4096
"""Values that a share is taken of; an index within one has 12 bits."""


class TopK:
    """In each block the `share` of values with the largest magnitudes: sign, and one of two magnitudes.

    The two are the means of the magnitudes above and below their mean, as float16 shares of the payload's largest.
    """

    sparse = True

    def __init__(self, name: str = "topk", share: float = 1 / 32) -> None:
        if not 0 < share <= 0.5:
            raise ValueError(f"a share of {share} of the values is not between 0 and one half")
        self.name = name
        self._share = share

    def encode(self, values: Tensor) -> bytes:
        parts = [self._encoded(rows) for rows in _blocks(values) if rows.numel()]
        if not parts:
            return b""
        unit = torch.cat([levels.view(-1) for _, levels, _ in parts]).max().reshape(1)
        divisor = unit.clamp_min(torch.finfo(torch.float32).tiny)
        shares = torch.cat([levels.view(-1) for _, levels, _ in parts]) / divisor
        indices = torch.cat([found.view(-1) for found, _, _ in parts])
        codes = torch.cat([code.view(-1) for _, _, code in parts])
        return to_bytes(unit) + to_bytes(shares.half()) + _pack_12(indices) + _pack_2(codes)

    def decode(self, payload: bytes, size: int) -> Tensor:
        shapes = [(size // BLOCK, BLOCK), (1, size % BLOCK)]
        shapes = [(rows, width) for rows, width in shapes if rows * width]
        counts = [rows * self._count(width) for rows, width in shapes]
        total, blocks = sum(counts), sum(rows for rows, _ in shapes)
        twelve, two = -(-total // 2) * 3, -(-total // 4)
        if len(payload) != (4 + 4 * blocks + twelve + two if total else 0):
            raise ValueError(f"the payload has {len(payload)} bytes, which is not that of {size} values")
        values = torch.zeros(size)
        if not total:
            return values
        levels = to_tensor(payload, torch.float16, 2 * blocks, 4).float() * to_tensor(payload, torch.float32, 1)
        indices = _unpack_12(to_tensor(payload, torch.uint8, twelve, 4 + 4 * blocks))[:total]
        codes = _unpack_2(to_tensor(payload, torch.uint8, two, 4 + 4 * blocks + twelve))[:total]
        at, block = 0, 0
        for (rows, width), count in zip(shapes, counts, strict=True):
            here = indices[at : at + count].view(rows, -1)
            if bool((here >= width).any()):
                raise ValueError(f"an index beyond a block of {width} values")
            code = codes[at : at + count].view(rows, -1)
            magnitude = levels[2 * block : 2 * (block + rows)].view(rows, 2).gather(1, code & 1)
            start = block * BLOCK
            values[start : start + rows * width].view(rows, width).scatter_(1, here, torch.where(code > 1, -magnitude, magnitude))
            at, block = at + count, block + rows
        return values

    def _count(self, width: int) -> int:
        return max(1, round(self._share * width))

    def _encoded(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode (r, w) values: indices (r, k) ascending, two levels (r, 2), codes (r, k)."""
        indices = rows.abs().topk(self._count(rows.shape[1]), dim=1, sorted=False).indices.sort(dim=1).values
        chosen = rows.gather(1, indices)
        sizes = chosen.abs()
        high = sizes > sizes.mean(1, keepdim=True)
        upper = (sizes * high).sum(1) / high.sum(1).clamp_min(1)
        lower = (sizes * ~high).sum(1) / (~high).sum(1).clamp_min(1)
        return indices, torch.stack((lower, upper), dim=1), high.long() + 2 * (chosen < 0)


def _blocks(values: Tensor) -> tuple[Tensor, Tensor]:
    whole = values.numel() // BLOCK * BLOCK
    return values[:whole].view(-1, BLOCK), values[whole:].view(1, -1)


def _pack_12(indices: Tensor) -> bytes:
    pairs = F.pad(indices, (0, indices.numel() % 2)).view(-1, 2)
    first, second = pairs[:, 0], pairs[:, 1]
    packed = torch.stack((first & 0xFF, first >> 8 | (second & 0xF) << 4, second >> 4), dim=1)
    return to_bytes(packed.to(torch.uint8))


def _unpack_12(packed: Tensor) -> Tensor:
    low, middle, high = packed.long().view(-1, 3).unbind(1)
    return torch.stack((low | (middle & 0xF) << 8, middle >> 4 | high << 4), dim=1).view(-1)


def _pack_2(codes: Tensor) -> bytes:
    four = F.pad(codes, (0, -codes.numel() % 4)).view(-1, 4)
    return to_bytes((four << torch.tensor([0, 2, 4, 6])).sum(1).to(torch.uint8))


def _unpack_2(packed: Tensor) -> Tensor:
    return (packed.long().unsqueeze(1) >> torch.tensor([0, 2, 4, 6])).bitwise_and_(3).view(-1)
