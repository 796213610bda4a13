"""Strangers' archives: regular files come out whole; false headers and bombs cost little and raise nothing but what is named."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from composer_replication.sandbox.archive_members import DAMAGED, archive_members

FILES = {"a/one.txt": b"one\n" * 40_000, "a/two.sh": b"#!/bin/sh\n", "empty": b""}
MOST = 64 << 20


def tarred() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(content))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            info = tarfile.TarInfo(f"odd {kind!r}")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    return stream.getvalue()


def zipped(compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in FILES.items():
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = (0o100755 if name.endswith(".sh") else 0o100644) << 16, compression
            archive.writestr(info, content)
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.mkdir("folder")
    return stream.getvalue()


KINDS = {
    "tar": tarred(),
    "gzip": gzip.compress(tarred()),
    "bzip2": bz2.compress(tarred()),
    "xz": lzma.compress(tarred()),
    "lzma": lzma.compress(tarred(), lzma.FORMAT_ALONE),
    "zip": zipped(),
    "stored zip": zipped(zipfile.ZIP_STORED),
}


@contextmanager
def costing_at_most(mebibytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < mebibytes << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_regular_files_come_out_whole(kind: str) -> None:
    members = {m.name: (m.size, m.runs, m.read(), m.is_link) for m in archive_members(io.BytesIO(KINDS[kind]), most=MOST)}
    if kind in ("zip", "stored zip"):
        assert members.pop("link") == (11, True, b"/etc/passwd", True)
    assert not any(is_link for *_, is_link in members.values())
    found = {name: one[:3] for name, one in members.items()}
    assert found == {name: (len(content), name.endswith(".sh"), content) for name, content in FILES.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_torn_or_changed_raises_nothing_else(kind: str) -> None:
    drawn = random.Random(kind)
    whole = KINDS[kind]
    for _ in range(150):
        content = bytearray(whole[: drawn.randrange(len(whole))] if drawn.random() < 0.3 else whole)
        for _ in range(drawn.randrange(1, 4) if content else 0):
            content[drawn.randrange(min(len(content), 2000))] = drawn.randrange(256)
        try:
            for member in archive_members(io.BytesIO(bytes(content)), most=MOST):
                member.read()
        except DAMAGED:
            pass


def claiming(content: bytes, size: int) -> bytes:
    """A zip file whose directory claims other sizes."""
    changed, at = bytearray(content), content.index(b"PK\x01\x02")
    while at >= 0:
        struct.pack_into("<I", changed, at + 24, size)
        at = content.find(b"PK\x01\x02", at + 1)
    return bytes(changed)


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_zip_of_another_kind_is_not_unpacked(compression: int) -> None:
    """Python's unpacks as much as there is, whatever size is asked for."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        archive.writestr("bomb", bytes(96 << 20))
    (member,) = archive_members(io.BytesIO(claiming(stream.getvalue(), 10)), most=MOST)
    with costing_at_most(8), pytest.raises(ValueError, match="can hold any size"):
        member.read()


def test_a_member_of_a_zip_is_no_larger_than_it_claims() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", bytes(96 << 20))
    (member,) = archive_members(io.BytesIO(claiming(stream.getvalue(), 10)), most=MOST)
    with costing_at_most(8), pytest.raises(DAMAGED):  # its checksum is another one
        member.read()


def further_headers(size: int) -> bytes:
    made = tarfile.TarInfo("x")
    made.type, made.size = tarfile.XHDTYPE, size
    return made.tobuf()


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_header_of_a_tar_archive_takes_no_memory(pack: object) -> None:
    assert callable(pack)
    bomb = pack(further_headers(1 << 33) + bytes(96 << 20))
    with costing_at_most(16), pytest.raises(DAMAGED):
        list(archive_members(io.BytesIO(bomb), most=MOST))


def test_the_way_to_the_next_member_is_bounded() -> None:
    large = tarfile.TarInfo("large")
    large.size = 1 << 40
    with pytest.raises(ValueError, match="larger than 64 MiB unpacked"):
        list(archive_members(io.BytesIO(gzip.compress(large.tobuf() + bytes(4096))), most=MOST))
