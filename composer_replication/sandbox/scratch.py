"""Scratch folders of the host for mount points, private copies and probes, which are always cleaned up.

A process that works in one holds a shared lock on it. The kernel releases a lock when its holder dies, so a folder
that is not locked is abandoned, and the next process to make one removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_PREFIX = "composer-scratch-"


def make_scratch() -> tuple[str, int]:
    """Make a private folder and return it with the descriptor that locks it; abandoned ones are removed first. Raises OSError."""
    _sweep()
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX)
        with suppress(FileNotFoundError):  # removed by another process before it was locked
            return path, hold(path)


def hold(path: str) -> int:
    """Lock a folder against removal until the returned descriptor is closed. Raises FileNotFoundError when it is gone."""
    with ExitStack() as undo:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        undo.callback(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_SH)
        if not os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
            raise FileNotFoundError(path)
        undo.pop_all()
        return fd


def remove_abandoned(path: str) -> None:
    """Remove a folder of ours unless somebody holds it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(fd)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a private folder for the time of a `with` block. Raises OSError."""
    path, held = make_scratch()
    try:
        yield Path(path)
    finally:
        os.close(held)
        remove_abandoned(path)


def _sweep() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        remove_abandoned(str(path))
