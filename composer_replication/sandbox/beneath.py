"""Read a folder that somebody else may be changing, and nothing outside of it.

The folder is opened once, and everything below it relative to that descriptor: `openat2` refuses symbolic links in every
component, other file systems and every way out. Where the kernel has no `openat2` (before Linux 5.6, or where a container's
filter refuses it), each component is opened in turn and never through a link. That refuses the same, except a bind mount of the
same file system. What a file is and what it holds are read from one descriptor, so no swap can come between the two.

This gives no snapshot. While another process writes to the folder, two files may come from different moments, and one file may
be part old, part new. Only what the folder itself holds is ever read.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from types import TracebackType

from composer_replication.sandbox.backends import linux

_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_TRIES = 64
"""How often an open that the kernel wants repeated (EAGAIN) is repeated. A file under a lease would ask for it without end."""
_LONGEST_PATH = 4095
"""Bytes of a path that the kernel takes in one call."""
_MOST_ENTRIES = 200_000
_REASONS = {
    errno.ELOOP: "it is a link, or lies behind one",
    errno.EXDEV: "it lies outside of the folder, or on another file system",
    errno.ENXIO: "it is a socket or a device",
}


class TooManyEntriesError(OSError):
    """A folder holds more files and folders than a listing takes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a listing."""

    info: os.stat_result
    """Of the path itself; links are not followed."""
    target: str = ""
    """Where a symbolic link points."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All paths below a folder, POSIX and relative to it."""

    entries: dict[str, Entry] = field(default_factory=dict)
    unreadable: dict[str, OSError] = field(default_factory=dict)
    """Folders among `entries` whose content is missing, with the reason."""


class OpenFolder:
    """A folder, opened once, whose content is read without ever leaving it. A context manager; `close` frees the descriptor.

    Args:
        root: the folder. Its parents are followed wherever they lead; itself it must not be a link.

    Raises:
        OSError: it is not there, is no folder, or may not be entered.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder. What was opened below it stays open."""
        os.close(self._fd)

    def subfolder(self, path: str) -> OpenFolder:
        """Open a folder below this one. Raises OSError, also where a link stands in the way."""
        inner = copy(self)
        inner.root = self.root / path
        inner._fd = open_beneath(self._fd, path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return inner

    def listing(
        self, skip: Set[str] = frozenset(), *, leave_out: Callable[[str], bool] | None = None, most: int = _MOST_ENTRIES
    ) -> Listing:
        """Return every path below the folder. A folder that cannot be read is listed as `unreadable`.

        Args:
            skip: names that are left out, wherever they are.
            leave_out: says of a path whether it is left out, a folder with all that is below it.
            most: the most files and folders together.

        Raises:
            TooManyEntriesError: there are more.
            OSError: the folder itself cannot be read.
        """
        found = Listing()
        pending = [""]
        while pending:
            prefix = pending.pop()
            try:
                for name, entry in self._entries_of(prefix.rstrip("/")):
                    if name in skip or (leave_out is not None and leave_out(prefix + name)):
                        continue
                    if len(found.entries) == most:
                        raise TooManyEntriesError(errno.E2BIG, f"it holds more than {most} files and folders", str(self.root))
                    found.entries[prefix + name] = entry
                    if stat.S_ISDIR(entry.info.st_mode):
                        pending.append(f"{prefix}{name}/")
            except TooManyEntriesError:
                raise
            except OSError as error:
                if not prefix:
                    raise
                found.unreadable[prefix.rstrip("/")] = error
        return found

    def _entries_of(self, folder: str) -> Iterator[tuple[str, Entry]]:
        with ExitStack() as stack:
            fd = open_beneath(self._fd, folder or ".", _FOLDER)
            stack.callback(os.close, fd)
            for entry in stack.enter_context(os.scandir(fd)):
                target = ""
                with suppress(FileNotFoundError):  # gone since
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISLNK(info.st_mode):
                        with suppress(OSError):  # another kind since
                            target = os.readlink(entry.name, dir_fd=fd)
                    yield entry.name, Entry(info, target)

    @contextmanager
    def file(self, path: str) -> Iterator[tuple[BufferedReader, os.stat_result]]:
        """Open a regular file for a `with` block: its content, and what the kernel says of the very same file.

        Raises:
            OSError: it is not there, is not a regular file, or cannot be reached without a link; `strerror` says which.
        """
        fd = open_beneath(self._fd, path, _READ)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", path)
            with open(fd, "rb", closefd=False) as file:
                yield file, info
        finally:
            os.close(fd)

    def is_only_name(self, path: str, file: BufferedReader) -> bool:
        """Return whether the path has been the only name of a file from the moment at which it was opened by it until now.

        A name that is gone never comes back: one that is given again is another. The kernel counts a name less a moment before it
        takes the name away, so the folder is read in between, for which the kernel waits until that is done.

        Raises:
            OSError: the folder that the file lay in is not there any more, or the machine has no /proc.
        """
        above, _, name = path.rpartition("/")
        folder = open_beneath(self._fd, above or ".", _FOLDER)
        try:
            if os.fstat(file.fileno()).st_nlink != 1:
                return False
            with os.scandir(folder) as entries:
                next(entries, None)
            return os.readlink(f"/proc/self/fd/{file.fileno()}") == f"{os.readlink(f'/proc/self/fd/{folder}')}/{name}"
        finally:
            os.close(folder)

    def read(self, path: str, most: int) -> bytes:
        """Return the content of a regular file of at most `most` bytes. Raises OSError like `file`, and for a larger one."""
        with self.file(path) as (file, _):
            content = file.read(most + 1)
        if len(content) > most:
            raise OSError(errno.EFBIG, f"it is larger than {most} bytes", path)
        return content


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open a path below an open folder, never through a link or out of the folder, and return the descriptor.

    Raises:
        OSError: it cannot be opened so; `strerror` says why.
    """
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise OSError(errno.EILSEQ, "no file can have that name", ascii(path)) from error
    if path.startswith("/") or ".." in path.split("/"):
        raise OSError(errno.EXDEV, _REASONS[errno.EXDEV], path)
    if not name or b"\0" in name or len(name) > _LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG if len(name) > _LONGEST_PATH else errno.EINVAL, "no file can have that name", path)
    try:
        try:
            return _openat2(folder, name, flags)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
            return open_by_component(folder, path, flags)
    except OSError as error:
        number = error.errno or errno.EIO
        raise OSError(number, _REASONS.get(number, os.strerror(number)), path) from error


def _openat2(folder: int, name: bytes, flags: int) -> int:
    how = struct.pack("QQQ", flags, 0, _RESOLVE)
    tries = 0
    while True:
        try:
            return linux.syscall("openat2", folder, name, how, len(how))
        except OSError as error:
            tries += error.errno == errno.EAGAIN
            if error.errno not in (errno.EAGAIN, errno.EINTR) or tries == _TRIES:
                raise


def open_by_component(folder: int, path: str, flags: int) -> int:
    """Open like `open_beneath` with one call for each component: the way for kernels without `openat2`.

    Args:
        path: relative, without `..`.

    Raises:
        OSError: a component is a link, is missing, or lies on another file system.
    """
    device = os.fstat(folder).st_dev
    *folders, last = [part for part in path.split("/") if part not in ("", ".")] or ["."]
    with ExitStack() as opened:
        for part in folders:
            folder = _open_here(folder, part, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, device)
            opened.callback(os.close, folder)
        return _open_here(folder, last, flags, device)


def _open_here(folder: int, name: str, flags: int, device: int) -> int:
    try:
        fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError:
        if stat.S_ISLNK(os.lstat(name, dir_fd=folder).st_mode):
            raise OSError(errno.ELOOP, _REASONS[errno.ELOOP], name) from None
        raise
    if os.fstat(fd).st_dev != device:
        os.close(fd)
        raise OSError(errno.EXDEV, _REASONS[errno.EXDEV], name)
    return fd
