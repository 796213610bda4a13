"""Which of n values there are: as a bit for each, or as the gaps between them, whichever is shorter."""

from __future__ import annotations

import torch
from torch import Tensor

from composer_replication.diloco.codecs.raw import to_bytes, to_tensor

_BITS, _GAPS = b"\0", b"\1"
_LONG = 255
"""A gap of this many values or more is written in full after the short ones."""
_MOST = 2**31 - 1


def pack_positions(there: Tensor) -> bytes:
    """Encode the positions of a (n,) mask.

    Raises:
        ValueError: there are more than 2**31 values.
    """
    if there.numel() > _MOST:
        raise ValueError(f"{there.numel()} positions are more than 31 bits can count")
    gaps = torch.diff(there.nonzero().view(-1), prepend=torch.tensor([-1])) - 1
    long = gaps[gaps >= _LONG]
    if _gaps_length(gaps.numel(), long.numel()) >= _bits_length(there.numel()):
        return _BITS + to_bytes(_bits(there))
    counts = torch.tensor([gaps.numel(), long.numel()], dtype=torch.int32)
    return _GAPS + to_bytes(counts) + to_bytes(gaps.clamp(max=_LONG).to(torch.uint8)) + to_bytes(long.to(torch.int32))


def positions_length(size: int, count: int) -> int:
    """Return about how many bytes `count` of `size` positions take."""
    return min(_bits_length(size), _gaps_length(count, 0))


def unpack_positions(payload: bytes, size: int) -> tuple[Tensor, int]:
    """Decode the indices, ascending, and return where in the payload they end.

    Raises:
        ValueError: the bytes are not positions among `size` values.
    """
    kind = payload[:1]
    if kind == _BITS:
        length = _bits_length(size)
        packed = to_tensor(payload, torch.uint8, length - 1, 1)
        bits = (packed.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
        return _checked(bits.view(-1).nonzero().view(-1), size), length
    if kind != _GAPS:
        raise ValueError("the positions are of no known kind")
    count, several = (int(number) for number in to_tensor(payload, torch.int32, 2, 1))
    if count < 0 or several < 0:
        raise ValueError("a negative number of positions")
    gaps = to_tensor(payload, torch.uint8, count, 9).long()
    long = to_tensor(payload, torch.int32, several, 9 + count).long()
    if int((gaps == _LONG).sum()) != several or bool((long < _LONG).any()):
        raise ValueError("the long gaps are not those of the short ones")
    gaps[gaps == _LONG] = long
    return _checked((gaps + 1).cumsum(0) - 1, size), _gaps_length(count, several)


def _bits(there: Tensor) -> Tensor:
    padded = torch.zeros(-(-there.numel() // 8) * 8, dtype=torch.uint8)
    padded[: there.numel()] = there
    return (padded.view(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def _bits_length(size: int) -> int:
    return 1 + -(-size // 8)


def _gaps_length(count: int, several: int) -> int:
    return 9 + count + 4 * several


def _checked(indices: Tensor, size: int) -> Tensor:
    if indices.numel() and int(indices[-1]) >= size:
        raise ValueError(f"position {int(indices[-1])} among {size} values")
    return indices
