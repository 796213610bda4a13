"""A replica's own contribution to a round, and reading those of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from composer_replication.diloco.codecs.dense import GROUP
from composer_replication.diloco.codecs.protocol import VisibleCodec
from composer_replication.diloco.membership import RoundStore, key_of
from composer_replication.diloco.setting import Setting
from composer_replication.diloco.wire import (
    Chunk,
    Contribution,
    DamagedError,
    digest,
    header_length,
    pack,
    reread,
    unpack,
)


@dataclass(frozen=True, slots=True)
class Published:
    """The objects stored in this replica's name."""

    header: Contribution
    chunks: tuple[bytes, ...]


def bounds(setting: Setting, size: int) -> list[tuple[int, int]]:
    """Return the begin and end of each chunk of a vector: one chunk for each replica, or the whole."""
    if setting.flat:
        return [(0, size)]
    step = -(-size // setting.world_size)
    step = -(-step // GROUP) * GROUP
    return [(min(part * step, size), min((part + 1) * step, size)) for part in range(setting.world_size)]


def most_bytes(size: int) -> int:
    """Return a size that no codec exceeds for this many values: longer objects are not read."""
    return 8 * size + 1024


def send(setting: Setting, place: RoundStore, values: Tensor | None, weight: float, reference: Tensor | None) -> Published:
    """Put this replica's contribution, unless one is there from an earlier life of it: then that one counts.

    Args:
        values: (size,) float32, finite; None for a replica that has nothing to give.
    """
    chunks = () if values is None else tuple(_encoded(setting, place, values, reference))
    norm = 0.0 if values is None else float(torch.linalg.vector_norm(values, dtype=torch.float64))
    header = Contribution(
        run=setting.run,
        name=place.name,
        round=place.round,
        rank=setting.rank,
        codec=setting.codec.name,
        size=place.size,
        weight=0.0 if values is None else weight,
        norm=norm,
        chunks=tuple(Chunk(len(chunk), digest(chunk)) for chunk in chunks),
    )
    block = pack(header, header_length(setting.world_size))
    if place.store.create(key_of(setting.rank), b"".join((block, *chunks))):
        return Published(header, chunks)
    return _earlier(setting, place, header, chunks)


def _encoded(setting: Setting, place: RoundStore, values: Tensor, reference: Tensor | None) -> list[bytes]:
    codec = setting.codec
    parts = bounds(setting, place.size)
    if reference is not None and isinstance(codec, VisibleCodec):
        return [codec.encode_visible(values[begin:end], reference[begin:end]) for begin, end in parts]
    return [codec.encode(values[begin:end]) for begin, end in parts]


def _earlier(setting: Setting, place: RoundStore, header: Contribution, chunks: tuple[bytes, ...]) -> Published:
    try:
        found = read_header(setting, place, setting.rank)
        if found == header:
            return Published(header, chunks)
        whole = place.store.get(key_of(setting.rank)) or b""
        parts, at = [], header_length(setting.world_size)
        for chunk in found.chunks:
            parts.append(whole[at : at + chunk.length])
            at += chunk.length
            if digest(parts[-1]) != chunk.digest:
                raise DamagedError("its payload is damaged")
        return Published(found, tuple(parts))
    except DamagedError:  # so that no replica counts it
        return Published(header, chunks)


def read_header(setting: Setting, place: RoundStore, rank: int) -> Contribution:
    """Read the header of a rank's contribution.

    Raises:
        DamagedError: it is missing or damaged, or of another run, rank, round, fragment, size or codec.
    """
    length = header_length(setting.world_size)
    return reread(lambda: check_header(setting, place, rank, place.store.get_range(key_of(rank), 0, length)))


def check_header(setting: Setting, place: RoundStore, rank: int, block: bytes | None) -> Contribution:
    """Check the header that an object starts with. Raises DamagedError, as `read_header` does."""
    found = unpack(Contribution, block)
    mine = (setting.run, place.name, place.round, rank, setting.codec.name, place.size)
    theirs = (found.run, found.name, found.round, found.rank, found.codec, found.size)
    if mine != theirs:
        raise DamagedError(f"it is that of {theirs}, not of {mine}")
    parts = bounds(setting, place.size)
    fitting = all(chunk.length <= most_bytes(end - begin) for chunk, (begin, end) in zip(found.chunks, parts, strict=False))
    if len(found.chunks) not in (0, len(parts)) or not fitting:
        raise DamagedError("its header names no such chunks")
    return found


def checked(setting: Setting, payload: bytes | None, chunk: Chunk, size: int) -> Tensor:
    """Return the values of a chunk. Raises DamagedError when they do not match the header, or are not finite."""
    if payload is None or len(payload) != chunk.length or digest(payload) != chunk.digest:
        raise DamagedError("its payload does not have the checksum that its header names")
    try:
        values = setting.codec.decode(payload, size)
    except ValueError as error:
        raise DamagedError(str(error)) from error
    if not bool(torch.isfinite(values).all()):
        raise DamagedError("its values are not finite")
    return values


def gated(setting: Setting, headers: Sequence[Contribution]) -> set[int]:
    """Return the ranks whose norm is beyond the gate: a function of the headers alone, so the same on every replica."""
    if setting.norm_gate is None:
        return set()
    usual = median([header.norm for header in headers if header.chunks] or [0.0])
    return {header.rank for header in headers if header.norm > setting.norm_gate * usual > 0}
