"""The blocks of facts that objects start with: a mark, a checksum, and JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

__all__ = [
    "Chunk",
    "Contribution",
    "DamagedError",
    "Reduced",
    "Seal",
    "digest",
    "header_length",
    "pack",
    "read_contribution",
    "read_reduced",
    "read_seal",
    "reread",
]

T = TypeVar("T")

_MARK = b"CRDILO1\n"
_DIGEST = 16
_READS = 3
_START = len(_MARK) + _DIGEST
_FIXED, _PER_CHUNK = 512, 80
"""Bytes of JSON that a header has room for, and more of them for each replica."""


class DamagedError(ValueError):
    """An object is not what its checksum says, or says what cannot be."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a payload."""

    length: int
    """Bytes."""
    digest: str


@dataclass(frozen=True, slots=True)
class Contribution:
    """The header of what one replica sends in a round; its chunks follow one another after it."""

    run: str
    """Fingerprint of the run."""
    name: str
    round: int
    rank: int
    codec: str
    size: int
    """Values in all."""
    weight: float
    """Its share in the mean; 0 for a replica that has nothing to give and only says that it lives."""
    norm: float
    """Of the values as sent, L2."""
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Seal:
    """Who takes part in a round."""

    run: str
    name: str
    round: int
    codec: str
    size: int
    by: int
    """The rank that wrote it."""
    members: tuple[int, ...]
    refused: tuple[tuple[int, str], ...] = ()
    """Ranks whose contribution came in time and does not count, and why; owners of chunks say so in these instead."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """The header of one chunk of the mean."""

    run: str
    name: str
    round: int
    chunk: int
    codec: str
    size: int
    """Values of the chunk."""
    by: int
    members: tuple[int, ...]
    """Whose values are in it."""
    refused: tuple[tuple[int, str], ...]
    payload: Chunk


def digest(data: bytes) -> str:
    """The checksum of bytes, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=_DIGEST).hexdigest()


def header_length(world_size: int) -> int:
    """Bytes that a header takes in a run of so many replicas."""
    return _START + _FIXED + _PER_CHUNK * world_size


def pack(facts: Contribution | Seal | Reduced, length: int | None = None) -> bytes:
    """The block of some facts, filled up to `length` bytes.

    Raises:
        ValueError: they take more.
    """
    text = json.dumps(asdict(facts), separators=(",", ":"), allow_nan=False).encode()
    if length is not None:
        if len(text) > length - _START:
            raise ValueError(f"a header of {len(text)} bytes does not fit into {length - _START}")
        text = text.ljust(length - _START)
    return _MARK + hashlib.blake2b(text, digest_size=_DIGEST).digest() + text


def _unpack(block: bytes | None) -> dict[str, Any]:
    """The facts of a block.

    Raises:
        DamagedError: it is missing, is none, or is not whole.
    """
    if block is None:
        raise DamagedError("it is missing")
    if not block.startswith(_MARK) or len(block) < _START:
        raise DamagedError("it does not start as one of ours does")
    text = block[_START:]
    if hashlib.blake2b(text, digest_size=_DIGEST).digest() != block[len(_MARK) : _START]:
        raise DamagedError("its header does not have the checksum it names")
    facts = json.loads(text)
    if not isinstance(facts, dict):
        raise DamagedError("its header is no table")
    return facts


def read_contribution(block: bytes | None) -> Contribution:
    """The header of a contribution. Raises DamagedError."""
    facts = _unpack(block)
    return _made(Contribution, {**facts, "chunks": tuple(_made(Chunk, part) for part in _listed(facts, "chunks"))})


def read_seal(block: bytes | None) -> Seal:
    """A seal. Raises DamagedError."""
    facts = _unpack(block)
    return _made(Seal, {**facts, "members": tuple(_listed(facts, "members")), "refused": _refused(facts)})


def read_reduced(block: bytes | None) -> Reduced:
    """The header of a chunk of the mean. Raises DamagedError."""
    facts = _unpack(block)
    payload = _made(Chunk, facts.get("payload"))
    return _made(Reduced, {**facts, "payload": payload, "members": tuple(_listed(facts, "members")), "refused": _refused(facts)})


def reread(read: Callable[[], T]) -> T:
    """What `read` returns; it is asked again before damage is believed to be in the store and not on the way.

    Raises:
        DamagedError: it is.
    """
    for _ in range(_READS - 1):
        with suppress(DamagedError):
            return read()
    return read()


def _made(kind: type[T], facts: object) -> T:
    try:
        return kind(**facts)  # type: ignore[arg-type]
    except TypeError as error:
        raise DamagedError(f"its header is of another kind: {error}") from error


def _listed(facts: Mapping[str, Any], key: str) -> list[Any]:
    found = facts.get(key)
    if not isinstance(found, list):
        raise DamagedError(f"its header has no list of {key}")
    return found


def _refused(facts: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
    return tuple((int(rank), str(reason)) for rank, reason in _listed(facts, "refused"))
