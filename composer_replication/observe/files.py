"""Files that survive `kill -9` and a full disk: whole-file replacement, appended lines, and errors that name the fix.

A file is replaced by writing a sibling, flushing it to the disk and renaming it over the old one, so a reader sees the old
content or the new, never a mixture. A line is appended with one write; if that fails half-way the file is cut back to where it
was. A last line without its newline is what a killed process leaves behind: readers ignore it and the next append removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from composer_replication.types.errors import ConfigError, StorageError

_BLOCK = 1 << 16


@contextlib.contextmanager
def storage_errors(path: Path, action: str = "write") -> Iterator[None]:
    """Turn any `OSError` of the body into a `StorageError` that names the path, what is safe and the fix."""
    try:
        yield
    except OSError as error:
        in_run = any((folder / _OF_RUNS).is_file() for folder in (path, *path.parents))
        safe = ". Every file already complete in the run directory is intact" if in_run and action != "read" else ""
        again = "continue from the last checkpoint with `composer train RUN.toml --resume`" if in_run else "run the command again"
        raise StorageError(
            f"cannot {action} {path}: {error.strerror or error}{safe}", fix=f"{_cure(path, error, action)}, then {again}"
        ) from error


_OF_RUNS = "metrics.jsonl"
"""A file every run directory has (`observe.run_dir`)."""


def _cure(path: Path, error: OSError, action: str = "write") -> str:
    """Say what to do about `path`, with the free space where it can be read."""
    if isinstance(error, IsADirectoryError) or (action != "read" and path.is_dir() and isinstance(error, FileExistsError)):
        return f"{path} is a folder: name a file"
    above = next((p for p in path.parents if p.exists()), Path("/"))
    if isinstance(error, NotADirectoryError | FileExistsError) and not above.is_dir():
        return f"{above} is a file: name a folder"
    folder = next((p for p in path.parents if p.is_dir()), Path("/"))
    if action == "read":
        return f"make {path} readable"
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free / 2**20
        return f"free space ({free:,.0f} MiB left) or make {folder} writable"
    return f"free space or make {folder} writable"


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process while the body runs; the lock ends with the process, however it ends.

    Raises:
        ConfigError: another process holds it.
        StorageError: it cannot be opened.
    """
    with storage_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another process is writing {folder}", fix="wait until it has ended, or stop it") from error
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Make `data`, whole or in parts, the content of `path`, atomically and durably; parent folders are created.

    Raises:
        StorageError: it could not be written; the old content, if any, is still there.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as stream:
                stream.writelines([data] if isinstance(data, bytes) else data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def append_line(path: Path, line: str, *, durable: bool) -> None:
    """Append one line (without its newline) to `path`, which is created when missing; other threads and processes wait.

    Args:
        durable: flush to the disk before returning; a plain append already survives the death of the process.

    Raises:
        StorageError: it could not be written; the file is as it was before.
    """
    data = memoryview(line.encode() + b"\n")
    with storage_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # else another's half written line would be cut away as torn
            start = _cut_torn_line(descriptor)
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
                if durable:
                    os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, start)
                raise
        finally:
            os.close(descriptor)


def _cut_torn_line(descriptor: int) -> int:
    """Remove an unterminated last line and return the file's size in bytes."""
    size = end = os.fstat(descriptor).st_size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
    return end


def read_lines(path: Path, *, appended: bool = True) -> Iterator[Any]:
    """Yield the JSON value of each line of `path`; nothing when the file is missing.

    Args:
        appended: lines are added one by one, so a torn last one is ignored. A file that was written at once is damaged by one.

    Raises:
        StorageError: the file cannot be read, or a line that is not ignored is not JSON (damaged storage).
    """
    if not path.exists():
        return
    with storage_errors(path, "read"), path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            torn = not line.endswith(b"\n")
            if torn and appended:
                return
            try:
                value = json.loads(line)
            except ValueError as error:
                what = "the file ends in the middle of it" if torn else f"not JSON ({error})"
                cure = "restore it from a copy, or delete that line if the run may lose it" if appended else "make it again"
                raise StorageError(f"{path}, line {number}: {what}", fix=f"the file is damaged: {cure}") from error
            yield value


def dump_line(record: Mapping[str, Any]) -> str:
    """Return one line of strict JSON. A non-finite number, which JSON lacks, becomes the string `nan`, `inf` or `-inf`."""
    return json.dumps(_strict(record), ensure_ascii=True, allow_nan=False, default=str)


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def remove(paths: Iterable[Path]) -> None:
    """Delete files; missing ones are ignored. Raises StorageError."""
    for path in paths:
        with storage_errors(path, "delete"):
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to the disk; a missing path is ignored. Raises StorageError."""
    with storage_errors(path), contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
