"""Members of archives that strangers made.

However they are packed, and whatever their headers claim, little is unpacked at once.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(RuntimeError, ValueError, KeyError, IndexError, OverflowError),
)
"""Errors of reading an archive with false or torn headers; RuntimeError is one with a password, or of a kind that Python does not
know."""
CHUNK = 1 << 20
"""The most bytes that are read at once."""
_PACKERS: tuple[tuple[bytes, Callable[[Any], Any]], ...] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
    (b"\x5d\x00\x00", lzma.LZMAFile),
)
"""How a compressed archive begins, and what unpacks it; each of these unpacks no more than it is asked for."""
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The kinds of compression in zip files that unpack no more than they are asked for."""


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A file in an archive, or what a zip file calls a link: programs unpack the one like the other."""

    name: str
    size: int
    """Bytes that `read` returns at most, which is what a header claims."""
    runs: bool
    """Its owner may execute it."""
    is_link: bool
    """A zip file says that it is something else than a regular file."""
    read: Callable[[], bytes]
    """Returns its content, before the next member is asked for; raises one of `DAMAGED`."""


def archive_members(file: IO[bytes], *, most: int) -> Iterator[ArchiveMember]:
    """Yield the files of a zip or tar archive in their order: of a tar archive regular ones, of a zip file all but folders.

    Args:
        file: open for reading, and seekable.
        most: bytes of a tar archive that are unpacked at most to get from one member to the next.

    Raises:
        One of `DAMAGED`: it is neither, is damaged, or a tar archive is larger.
    """
    if zipfile.is_zipfile(file):
        file.seek(0)
        yield from _of_zip(file)
    else:
        file.seek(0)
        yield from _of_tar(file, most)


def _of_zip(file: IO[bytes]) -> Iterator[ArchiveMember]:
    with zipfile.ZipFile(file) as zipped:
        for info in zipped.infolist():
            mode = info.external_attr >> 16
            if not info.is_dir():
                is_link = stat.S_IFMT(mode) not in (0, stat.S_IFREG)
                yield ArchiveMember(info.filename, info.file_size, bool(mode & stat.S_IXUSR), is_link, _reader(zipped, info))


def _reader(zipped: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], bytes]:
    def read() -> bytes:
        if info.compress_type not in _PLAIN:
            raise ValueError(f"{info.filename[:80]!r} is compressed in a way that can hold any size")
        with zipped.open(info) as member:
            return _whole(member, info.file_size)

    return read


def _of_tar(file: IO[bytes], most: int) -> Iterator[ArchiveMember]:
    start = file.read(8)
    file.seek(0)
    unpack = next((unpack for mark, unpack in _PACKERS if start.startswith(mark)), None)
    with tarfile.open(fileobj=BoundedFile(file if unpack is None else unpack(file)), mode="r:") as tar:
        for member in tar:
            if member.offset_data + member.size > most:
                raise ValueError(f"it is larger than {most >> 20} MiB unpacked")
            content = tar.extractfile(member) if member.isreg() else None
            if content is not None:
                yield ArchiveMember(
                    member.name, member.size, bool(member.mode & stat.S_IXUSR), False, partial(_whole, content, member.size)
                )


def _whole(member: IO[bytes], size: int) -> bytes:
    parts, left = [], size
    while left > 0 and (part := member.read(min(CHUNK, left))):
        parts.append(part)
        left -= len(part)
    member.read(1)  # at its end a zip file's checksum is compared
    return b"".join(parts)


class BoundedFile(io.RawIOBase):
    """A file of which little is read at once, whatever size a header claims; a torn compressed one is a false one."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes. Raises ValueError for more than is sane."""
        if not 0 <= size <= CHUNK:
            raise ValueError(f"a header claims {size} bytes")
        with _torn_is_false():
            content: bytes = self._file.read(size)
            return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place in the file."""
        with _torn_is_false():
            place: int = self._file.seek(offset, whence)
            return place

    def tell(self) -> int:
        """Return the place in the file."""
        place: int = self._file.tell()
        return place


@contextmanager
def _torn_is_false() -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ValueError(f"it is torn, or not compressed ({error})") from error
