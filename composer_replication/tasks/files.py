"""Writing a build's files: whole or not at all, and a full disk is an error with its fix."""

from __future__ import annotations

import contextlib
import difflib
import errno
import json
import os
import shutil
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.types.errors import StorageError, TaskError

_T = TypeVar("_T")


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the body, which writes below `path`, into a `StorageError`."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {error.filename or path}: {error.strerror or error}; every task already complete is intact",
            fix=f"free space or make {path} writable, then run the same command again: it continues where it stopped",
        ) from error


def foreign_state(file: Path) -> TaskError:
    """Make the error for a build's own record that cannot be read back."""
    return TaskError(f"{file} was not written by this release", fix=f"delete {file.parent} and build again")


def read_json(path: Path, *, fix: str = "") -> Any:
    """Read a record of a build, or of its tasks; None where there is none.

    Args:
        fix: the advice where it cannot be read; by default to build again.

    Raises:
        TaskError: it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise TaskError(f"{path} cannot be read ({error})", fix=fix or f"delete {path.parent} and build again") from error


def kept(file: Path, make: Callable[[], _T], read: Callable[[Any], _T], write: Callable[[_T], Any]) -> _T:
    """Return what an earlier call wrote to `file`, or make it and write it."""
    known = restored(file, read)
    if known is None:
        known = make()
        write_whole(file, json.dumps(write(known)).encode())
    return known


def restored(file: Path, read: Callable[[Any], _T]) -> _T | None:
    """Read what an earlier call wrote to `file`; None where there is none. Raises TaskError for what another release wrote."""
    known = read_json(file)
    try:
        return None if known is None else read(known)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise foreign_state(file) from error


def write_whole(path: Path, data: bytes) -> None:
    """Make `data` the content of `path` by way of a temporary file and a rename. Raises StorageError."""
    temporary = path.with_name(f".{path.name}.tmp")
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)


def tree_files(root: Path) -> list[str]:
    """Return the POSIX paths of everything below `root` that is not a folder, sorted; links are listed, not followed."""
    found = []
    pending = [root]
    while pending:
        for entry in pending.pop().iterdir():
            if entry.is_dir() and not entry.is_symlink():
                pending.append(entry)
            else:
                found.append(entry.relative_to(root).as_posix())
    return sorted(found)


def write_files(tree: Path, files: Mapping[str, bytes]) -> None:
    """Write files below `tree` by POSIX path, with their folders. Raises StorageError."""
    with storage_errors(tree):
        for path, content in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)


@contextlib.contextmanager
def solved_tree(repo: Path, gold: Mapping[str, bytes]) -> Iterator[Path]:
    """Yield a copy of a task's tree with the solution in it. Raises StorageError."""
    with scratch_folder() as scratch:
        tree = scratch / "solved"
        copy_tree(repo, tree)
        write_files(tree, gold)
        yield tree


def link_tree(source: Path, target: Path, *, without: Container[str] = ()) -> None:
    """Make a tree of the same regular files as hard links to them; as copies where the file system has no links.

    Args:
        without: POSIX paths of files that are left out.

    Raises:
        StorageError: `target` cannot be written.
    """

    def ignored(folder: str, names: list[str]) -> list[str]:
        place = Path(folder).relative_to(source)
        return [name for name in names if (place / name).as_posix() in without]

    with storage_errors(target):
        try:
            shutil.copytree(source, target, ignore=ignored, copy_function=link_or_copy)
        except shutil.Error as error:
            raise OSError(str(error.args[0][0][2])) from error


def link_or_copy(source: str, target: str) -> None:
    """Make a file as a hard link to another one; as a copy where the file system has no links, or no more. Raises OSError."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS):
            raise
        shutil.copy(source, target)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a tree of regular files with their permissions. Raises StorageError."""
    with storage_errors(target):
        try:
            shutil.copytree(source, target, copy_function=shutil.copy)
        except shutil.Error as error:
            raise OSError(str(error.args[0][0][2])) from error


def unified_diff(before: Mapping[str, bytes | None], after: Mapping[str, bytes]) -> bytes:
    r"""Return a patch that `git apply` and `patch -p1` take, from the files of `before` to those of `after` (same paths).

    None is a file that is not there yet.

    Lines are what ends in ``\n``, byte for byte; nothing is decoded.
    """
    pieces: list[bytes] = []
    for path in sorted(before):
        was, name = before[path], path.encode()
        old, new = (was or b"").split(b"\n"), after[path].split(b"\n")
        from_name = b"/dev/null" if was is None else b"a/" + name
        rows = difflib.diff_bytes(difflib.unified_diff, _ended(old), _ended(new), from_name, b"b/" + name)
        pieces += [row if row.endswith(b"\n") else row + b"\n\\ No newline at end of file\n" for row in rows]
    return b"".join(pieces)


def _ended(lines: list[bytes]) -> list[bytes]:
    """Put the newlines back on split lines."""
    return [line + b"\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]
