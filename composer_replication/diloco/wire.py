"""The blocks of facts that objects start with: a mark, a checksum, and JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

T = TypeVar("T")
Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
_Amount: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]

_MARK = b"CRDILO1\n"
_DIGEST = 16
_READS = 3
_START = len(_MARK) + _DIGEST
_FIXED, _PER_CHUNK = 512, 80
"""Bytes of JSON that a header has room for, and more of them for each replica."""


class DamagedError(ValueError):
    """An object does not match its checksum, or holds impossible values."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a payload."""

    length: Count
    """Bytes."""
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoundFacts:
    """The round that an object is of."""

    run: str
    """Fingerprint of the run."""
    name: str
    round: int
    codec: str
    size: int
    """Values in all, or of the chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution(_RoundFacts):
    """The header of what one replica sends in a round; its chunks follow one another after it."""

    rank: int
    weight: _Amount
    """Its weight in the mean; 0 for a replica that has nothing to contribute and only reports that it is alive."""
    norm: _Amount
    """L2 norm of the values as sent."""
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal(_RoundFacts):
    """Membership of a round."""

    by: int
    """The rank that wrote it."""
    members: tuple[int, ...]
    refused: tuple[tuple[int, str], ...] = ()
    """Ranks whose contribution came in time and does not count, and why; owners of chunks say so in these instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced(_RoundFacts):
    """The header of one chunk of the mean."""

    chunk: int
    by: int
    members: tuple[int, ...]
    """Ranks whose values are in it."""
    refused: tuple[tuple[int, str], ...]
    payload: Chunk


_KINDS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (Contribution, Seal, Reduced)}


def digest(data: bytes) -> str:
    """Return the checksum of bytes, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=_DIGEST).hexdigest()


def header_length(world_size: int) -> int:
    """Return the bytes that a header takes in a run of this many replicas."""
    return _START + _FIXED + _PER_CHUNK * world_size


def pack(facts: Contribution | Seal | Reduced, length: int | None = None) -> bytes:
    """Serialize facts into a block, filled up to `length` bytes.

    Raises:
        ValueError: they take more.
    """
    text = json.dumps(asdict(facts), separators=(",", ":"), allow_nan=False).encode()
    if length is not None:
        if len(text) > length - _START:
            raise ValueError(f"a header of {len(text)} bytes does not fit into {length - _START}")
        text = text.ljust(length - _START)
    return _MARK + hashlib.blake2b(text, digest_size=_DIGEST).digest() + text


def parsed(kind: TypeAdapter[T], text: bytes) -> T:
    """Parse JSON, type by type and without conversions; unknown keys are ignored. Raises DamagedError."""
    try:
        return kind.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise DamagedError(f"its {field or 'content'} cannot be: {first['msg'].lower()}") from None


def unpack(kind: type[T], block: bytes | None) -> T:
    """Read the facts of a block, a `Contribution`, `Seal` or `Reduced`.

    Raises:
        DamagedError: it is missing, is of another kind, or is not whole.
    """
    if block is None:
        raise DamagedError("it is missing")
    if not block.startswith(_MARK) or len(block) < _START:
        raise DamagedError("it does not start as one of ours does")
    text = block[_START:]
    if hashlib.blake2b(text, digest_size=_DIGEST).digest() != block[len(_MARK) : _START]:
        raise DamagedError("its header does not have the checksum it names")
    facts: T = parsed(_KINDS[kind], text)
    return facts


def reread(read: Callable[[], T]) -> T:
    """Return what `read` returns; repeat it before concluding that the damage is in the store and not in transit.

    Raises:
        DamagedError: it is.
    """
    for _ in range(_READS - 1):
        with suppress(DamagedError):
            return read()
    return read()
