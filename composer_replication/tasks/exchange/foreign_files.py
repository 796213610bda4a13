"""A private copy of another author's task folder: regular files only, limited in number, size and depth.

Everything that reads a foreign task reads the copy. Nothing in it is a link, and nobody else can change it meanwhile.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from composer_replication.sandbox.beneath import Entry, OpenFolder
from composer_replication.types.errors import StorageError

_SKIPPED = frozenset({".git", "__pycache__"})
_MOST_ENTRIES, _MOST_BYTES, _LARGEST_BYTES, _DEEPEST = 50_000, 512 << 20, 64 << 20, 64
_CHUNK = 1 << 20
_MOST_SEARCHED = 2_000_000
"""Files and folders among which tasks are looked for."""

DAMAGED = (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError, OverflowError)
"""What reading data of another shape than expected raises: files of a foreign task, and what its code says of itself."""


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class NotExpressibleError(Exception):
    """Why a foreign task cannot be one of ours, as the end of a sentence."""


def damage(error: Exception) -> str:
    """Say what is wrong with files whose reading raised one of `DAMAGED`.

    Raises:
        StorageError: nothing is wrong with them: this machine has no room or no handles left.
    """
    if isinstance(error, OSError) and error.errno in _FULL:
        raise StorageError(
            f"cannot write {error.filename or tempfile.gettempdir()}: {error.strerror}; every task already complete is intact",
            fix="free space there or name another place with TMPDIR, then run the same command again",
        ) from error
    return f"its files cannot be read ({type(error).__name__}: {error})"


def folders_with(top: OpenFolder, names: Iterable[str]) -> Iterator[str]:
    """Yield the folders at or below `top` that have an entry of each of `names`, sorted; `.` is `top` itself.

    Raises:
        OSError: `top` cannot be read, or holds more than two million files and folders.
    """
    first, *others = names
    paths = top.listing(_SKIPPED, most=_MOST_SEARCHED).entries
    for path in sorted(paths):
        folder, name = posixpath.split(path)
        if name == first and all(posixpath.join(folder, other) in paths for other in others):
            yield folder or "."


def copy_foreign(source: OpenFolder, target: Path) -> Path:
    """Copy a task folder to the new folder `target` and return it; version control and bytecode stay out.

    Raises:
        NotExpressibleError: it holds a link or something else that is no file, or too much.
        OSError: a file cannot be read, or `target` cannot be written.
    """
    listing = source.listing(_SKIPPED, most=_MOST_ENTRIES)
    for path, why in listing.unreadable.items():
        raise NotExpressibleError(f"{path}/ cannot be read ({why.strerror})")
    target.mkdir(mode=0o700)
    room = _MOST_BYTES
    for path, entry in sorted(listing.entries.items()):
        _refuse(path, entry)
        if stat.S_ISDIR(entry.info.st_mode):
            (target / path).mkdir()
        else:
            room -= _copy_file(source, path, target / path, min(room, _LARGEST_BYTES))
    return target


def _refuse(path: str, entry: Entry) -> None:
    if stat.S_ISLNK(entry.info.st_mode):
        raise NotExpressibleError(f"{path} is a link (to {entry.target}); replace it with what it points to")
    if not (stat.S_ISREG(entry.info.st_mode) or stat.S_ISDIR(entry.info.st_mode)):
        raise NotExpressibleError(f"{path} is neither a file nor a folder; remove it")
    if path.count("/") > _DEEPEST:
        raise NotExpressibleError(f"{path[:80]}... is nested deeper than {_DEEPEST} folders")


def _copy_file(source: OpenFolder, path: str, target: Path, most: int) -> int:
    """Copy one file and return its size. Raises NotExpressibleError when it has more than `most` bytes."""
    with source.file(path) as (file, info), target.open("xb") as copy:
        size = info.st_size
        while size <= most and (chunk := file.read(_CHUNK)):
            copy.write(chunk)
            size = max(size, copy.tell())
        if size > most:
            raise NotExpressibleError(f"{path}: it is larger than the {most >> 20} MiB that are left for it")
        os.fchmod(copy.fileno(), 0o755 if info.st_mode & stat.S_IXUSR else 0o644)
    return size
