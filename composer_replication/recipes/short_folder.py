"""A folder with a short path for Ray, whose sockets need one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["short_folder"]

_MARK = "ray-of-run-"


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Make the folder, and delete it afterwards. What a killed process has left is deleted by the next call. Raises OSError."""
    _sweep()
    made = Path(tempfile.mkdtemp(prefix="ray-"))
    lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as the process lives
        folder = made.rename(made.with_name(_MARK + made.name.removeprefix("ray-")))  # it is not swept before it is locked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_MARK}*"):
        with contextlib.suppress(OSError):  # locked, gone already, or another user's
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
