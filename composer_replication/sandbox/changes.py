"""The changes a command made to its tree, read back as plain data when the last process of its sandbox has ended.

Only regular files come back: content, not modes or times. Links, devices and pipes are refused by name. Everything is opened
relative to an open folder and never through a link, so that nothing the command made can lead out of its tree.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader

LITTER = frozenset({".git", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
"""Folders tools leave behind: neither shown to an agent, nor graded, nor reported."""

_MOST_ENTRIES = 100_000
_DEEPEST = 64
_CHUNK = 1 << 20
_SHOWN_NAME = 200
_OPAQUE = "user.overlay.opaque"
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(slots=True)
class Changed:
    """The difference between a tree and its base."""

    files: dict[str, bytes | None] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    """`path (reason)` each."""
    too_much: str = ""
    """Which limit was exceeded; `files` is empty then."""


class _TooMuchError(Exception):
    """A limit was exceeded."""


def read_changes(top: int, base: int, *, overlay: bool, most_files: int, most_bytes: int) -> Changed:
    """Compare the folder open at `top` with the one open at `base`.

    Args:
        top: a whole tree or, with `overlay`, the upper layer of an overlay over `base`.
        most_files: changed and deleted files together.
        most_bytes: the changed files' content and paths together.

    Raises:
        OSError: a folder cannot be read.
    """
    reader = _Reader(most_files, most_bytes)
    try:
        reader.folder(top, base, "", whole=not overlay, depth=0)
    except _TooMuchError as error:
        return Changed(too_much=str(error))
    return reader.changed


class _Reader:
    def __init__(self, most_files: int, most_bytes: int) -> None:
        self.changed = Changed()
        self._most_files = most_files
        self._most_bytes = most_bytes
        self._bytes = 0
        self._entries = 0

    def folder(self, top: int, base: int | None, prefix: str, *, whole: bool, depth: int) -> None:
        """Read one folder; `whole` says that what is not in it is deleted, and not merely unchanged."""
        names = set(os.listdir(top)) - LITTER
        if whole and base is not None:
            for name in sorted(set(os.listdir(base)) - LITTER - names):
                self._gone(base, name, prefix + name)
        for name in sorted(names):
            self._entries += 1
            if self._entries > _MOST_ENTRIES:
                raise _TooMuchError(f"more than {_MOST_ENTRIES} files and folders")
            try:
                self._entry(top, base, name, prefix + name, whole=whole, depth=depth)
            except PermissionError:
                self._refuse(prefix + name, "not readable")

    def _entry(self, top: int, base: int | None, name: str, path: str, *, whole: bool, depth: int) -> None:
        info, before = os.lstat(name, dir_fd=top), _lstat(base, name)
        kind = stat.S_IFMT(info.st_mode)
        replaces = before is not None and stat.S_IFMT(before.st_mode) != kind
        if replaces:
            self._gone(base, name, path)
        if kind == stat.S_IFDIR:
            self._subfolder(top, None if replaces else base, name, path, whole=whole, depth=depth)
        elif kind == stat.S_IFCHR and info.st_rdev == 0:  # an overlay's mark for what was deleted
            return
        elif kind == stat.S_IFLNK and not replaces and base is not None and before is not None:
            if os.readlink(name, dir_fd=top) != os.readlink(name, dir_fd=base):
                self._refuse(path, "a link")
        elif kind == stat.S_IFREG:
            self._file(top, None if replaces else base, name, path, info)
        else:
            self._refuse(path, _KINDS.get(kind, "not a file"))

    def _subfolder(self, top: int, base: int | None, name: str, path: str, *, whole: bool, depth: int) -> None:
        if depth == _DEEPEST:
            raise _TooMuchError(f"folders nested deeper than {_DEEPEST}")
        with _opened(top, name) as inner, _opened(base, name) as inner_base:
            if inner is not None:
                self.folder(inner, inner_base, path + "/", whole=whole or _is_opaque(inner), depth=depth + 1)

    def _file(self, top: int, base: int | None, name: str, path: str, info: os.stat_result) -> None:
        if base is not None and _same(top, base, name):
            return
        if not path.isprintable():
            self._refuse(path, "its name is not plain text")
        elif info.st_nlink > 1:
            self._refuse(path, "a hard link")
        else:
            self._count(info.st_size)
            self._put(path, _read(top, name))

    def _gone(self, base: int | None, name: str, path: str) -> None:
        """Record everything of the base at `path` as deleted."""
        info = _lstat(base, name)
        if info is None:
            return
        if not stat.S_ISDIR(info.st_mode):
            self._put(path, None)
            return
        with _opened(base, name) as inner:
            for child in [] if inner is None else sorted(set(os.listdir(inner)) - LITTER):
                self._gone(inner, child, f"{path}/{child}")

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > self._most_bytes:
            raise _TooMuchError(f"more than {self._most_bytes >> 20} MB in changed files")

    def _put(self, path: str, content: bytes | None) -> None:
        self._count(len(os.fsencode(path)))
        self.changed.files[path] = content
        if len(self.changed.files) > self._most_files:
            raise _TooMuchError(f"more than {self._most_files} changed files")

    def _refuse(self, path: str, reason: str) -> None:
        shown = ascii(path[:_SHOWN_NAME]) + ("..." if len(path) > _SHOWN_NAME else "")
        self.changed.refused.append(f"{shown} ({reason})")
        if len(self.changed.refused) > self._most_files:
            raise _TooMuchError(f"more than {self._most_files} links and devices")


def _lstat(folder: int | None, name: str) -> os.stat_result | None:
    try:
        return None if folder is None else os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None


@contextmanager
def _opened(folder: int | None, name: str) -> Iterator[int | None]:
    """Open the subfolder `name`, or yield None when there is none or it cannot be read."""
    try:
        fd = None if folder is None else os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError):
        fd = None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, _OPAQUE) == b"y"
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return False
        raise


def _same(top: int, base: int, name: str) -> bool:
    before = _lstat(base, name)
    if before is None or before.st_size != os.lstat(name, dir_fd=top).st_size:
        return False
    with _file(top, name) as now_file, _file(base, name) as before_file:
        while True:
            now, then = now_file.read(_CHUNK), before_file.read(_CHUNK)
            if now != then:
                return False
            if not now:
                return True


def _read(folder: int, name: str) -> bytes:
    with _file(folder, name) as file:
        return file.read()


def _file(folder: int, name: str) -> BufferedReader:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    return open(fd, "rb")
