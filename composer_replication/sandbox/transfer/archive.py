"""The message format between two sides of a pipe that do not trust each other: a line of JSON, then the bytes it announces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO


def pack(facts: Mapping[str, Any], blobs: Sequence[bytes]) -> bytes:
    """Pack one archive: facts that JSON can carry, and bytes."""
    header = json.dumps({"facts": facts, "sizes": [len(blob) for blob in blobs]})
    return b"".join([header.encode(), b"\n", *blobs])


def unpack(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Unpack what `pack` wrote. Raises ValueError for an incomplete archive."""
    try:
        header = json.loads(stream.readline())
        facts, sizes = dict(header["facts"]), [int(size) for size in header["sizes"]]
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError("the archive has no list of its contents") from error
    blobs = [stream.read(size) for size in sizes if size >= 0]
    if [len(blob) for blob in blobs] != sizes:
        raise ValueError("the archive is torn")
    return facts, blobs


def pack_files(files: Mapping[str, bytes | None]) -> tuple[list[tuple[str, bool]], list[bytes]]:
    """Pack changed and deleted files into a fact, (path, whether there is content) each, and their contents as blobs."""
    return [(path, content is not None) for path, content in files.items()], [c for c in files.values() if c is not None]


def unpack_files(listed: Sequence[tuple[str, bool]], blobs: Sequence[bytes]) -> dict[str, bytes | None]:
    """Invert `pack_files`. Raises ValueError when they do not belong together."""
    if sum(bool(there) for _, there in listed) != len(blobs):
        raise ValueError("the archive's files and their list differ")
    contents = iter(blobs)
    return {str(path): next(contents) if there else None for path, there in listed}
