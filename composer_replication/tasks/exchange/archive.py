"""A build's tasks as one archive: files that tasks have in common are stored once, and come back as hard links.

What is unpacked may be anybody's. Only regular files are made, below the folder of a task, and links to what the archive itself
has brought; each task's manifest says afterwards whether all of it is there.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from composer_replication.sandbox.archive_members import CHUNK, BoundedFile
from composer_replication.tasks.files import link_or_copy, storage_errors, tree_files
from composer_replication.tasks.report import BUILD_REPORT
from composer_replication.tasks.spec import is_inside, is_task_id
from composer_replication.tasks.store import MANIFEST, Task
from composer_replication.types.errors import TaskError

ENDING = ".tar.gz"
_MOST_BYTES, _LARGEST, _MOST_FILES, _DEEPEST = 64 << 30, 256 << 20, 20_000_000, 70
_LARGEST_RECORD = 16 << 20
_FALSE = (tarfile.TarError, ValueError, OverflowError, RecursionError)
"""What reading an archive with false headers raises."""
_FIX = "ask whoever pushed it to push again, or name another revision"


def pack(tasks: Sequence[Task], record: Mapping[str, Any], path: Path) -> None:
    """Write the archive of some tasks of a build, the same bytes for the same tasks.

    Args:
        record: what the archive tells of the build.

    Raises:
        TaskError: a task is damaged.
        StorageError: the archive cannot be written.
    """
    known: dict[tuple[str, bool], str] = {}
    with (
        storage_errors(path.parent),
        path.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        _add(tar, BUILD_REPORT, json.dumps(record, indent=1).encode())
        for task in sorted(tasks, key=lambda task: task.root.name):
            task.check()
            digests = {name: digest for digest, _, name in (line.partition("  ") for line in _manifest(task))}
            for name in tree_files(task.root):
                source, inside = task.root / name, f"{task.root.name}/{name}"
                runs = bool(source.stat().st_mode & stat.S_IXUSR)
                first = known.setdefault((digests.get(name, inside), runs), inside)
                _add(tar, inside, source.read_bytes() if first == inside else None, first, runs=runs)


def _manifest(task: Task) -> list[str]:
    return (task.root / MANIFEST).read_text("utf-8").splitlines()


def _add(tar: tarfile.TarFile, name: str, content: bytes | None, first: str = "", *, runs: bool = False) -> None:
    """Add a file, or without content a link to the member `first`."""
    member = tarfile.TarInfo(name)
    member.mode = 0o755 if runs else 0o644
    if content is None:
        member.type, member.linkname = tarfile.LNKTYPE, first
    else:
        member.size = len(content)
    tar.addfile(member, None if content is None else io.BytesIO(content))


def unpack(archive: Path, target: Path) -> dict[str, Any]:
    """Unpack an archive into the new folder `target`; return what it tells of the build.

    Raises:
        TaskError: it is none of ours, holds something else than tasks, or is far too large.
        StorageError: `target` cannot be written.
    """
    found = _Unpacked(target)
    try:
        with gzip.open(archive) as file, tarfile.open(fileobj=BoundedFile(file), mode="r:") as tar:
            for member in tar:
                found.take(tar, member)
        record = json.loads(found.record)
        if not isinstance(record, dict):
            raise ValueError("it has no record of the build")
    except _FALSE as error:
        raise TaskError(f"{archive.name} is no archive of tasks: {error}", fix=_FIX) from error
    return record


class _Unpacked:
    """What an archive has brought so far."""

    def __init__(self, target: Path) -> None:
        self.record = b"null"
        self._target, self._room, self._written = target, _MOST_BYTES, set[str]()

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Unpack a member. Raises ValueError for one that no archive of tasks has, and StorageError."""
        name = member.name
        if not _is_file_of_a_task(name) and name != BUILD_REPORT:
            raise ValueError(f"{name[:80]!r} is no file of a task")
        if name in self._written or len(self._written) >= _MOST_FILES:
            raise ValueError(f"{name[:80]!r} comes twice, or after too many others")
        if member.isreg():
            self._room -= member.size
            content = tar.extractfile(member)
            most = _LARGEST_RECORD if name == BUILD_REPORT else _LARGEST
            if content is None or member.size > min(self._room, most):
                raise ValueError(f"{name[:80]!r} is too large")
            if name == BUILD_REPORT:
                self.record = b"".join(iter(lambda: content.read(CHUNK), b""))
            else:
                self._write(name, content, 0o755 if member.mode & stat.S_IXUSR else 0o644)
        elif member.islnk() and BUILD_REPORT not in (name, member.linkname) and member.linkname in self._written:
            with self._new(name) as place:
                link_or_copy(str(self._target / member.linkname), str(place))
        else:
            raise ValueError(f"{name[:80]!r} is no file, and no link to an earlier one")
        self._written.add(name)

    @contextmanager
    def _new(self, name: str) -> Iterator[Path]:
        """Yield where a file is written, with its folder made."""
        with storage_errors(self._target):
            try:
                (self._target / name).parent.mkdir(parents=True, exist_ok=True)
                yield self._target / name
            except (FileExistsError, NotADirectoryError) as error:
                raise ValueError(f"{name[:80]!r} is a file and a folder") from error

    def _write(self, name: str, content: IO[bytes], mode: int) -> None:
        with self._new(name) as place, place.open("xb") as file:
            while chunk := content.read(CHUNK):
                file.write(chunk)
            os.fchmod(file.fileno(), mode)


def _is_file_of_a_task(name: str) -> bool:
    folder, _, rest = name.partition("/")
    parts = rest.split("/")
    return is_task_id(folder) and is_inside(rest) and len(parts) <= _DEEPEST and all(part not in ("", ".") for part in parts)
