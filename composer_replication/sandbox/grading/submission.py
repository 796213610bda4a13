"""The gradable part of a workspace: the changed files the task's allow list names, and nothing that could change the rules."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from composer_replication.sandbox.changes import LITTER
from composer_replication.types import TaskSpec

_NEVER = ("conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "setup.py", "*.pth")
_NEVER_MODULES = ("sitecustomize.py", "usercustomize.py")
"""Files that change what a test means or when code runs; not taken even where an allow list is careless."""

_MAX_FILE_BYTES = 4 << 20
_CHUNK = 1 << 20
_MOST_FILES, _MOST_BYTES = 1000, 64 << 20
"""Limits on all files together: work too large for the sandbox gets no verdict, and an agent must not be able to cause that."""
_LONGEST_NAME, _LONGEST_PATH = 255, 1000
"""Bytes a file system takes for a name, and the most of a path."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The graded difference between a workspace and the task's own tree."""

    changes: dict[str, bytes | None]
    """Editable files that differ, in order of path; None for a deleted one."""
    rejected: tuple[str, ...]
    """Changed paths that are not taken."""


def is_editable(task: TaskSpec, path: str) -> bool:
    """Return whether the allow list names `path` (POSIX, relative): `*` and `?` stay within a folder, `**` crosses folders."""
    name = path.rpartition("/")[2]
    if not _is_plain(path):
        return False
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in (*_NEVER, *_NEVER_MODULES)):
        return False
    if any(test_id.partition("::")[0] == path for test_id in (*task.fail_to_pass, *task.pass_to_pass)):
        return False
    return any(_regex(pattern).fullmatch(path) for pattern in task.editable)


def _is_plain(path: str) -> bool:
    """Return whether every file system can hold a file of that name, inside the tree."""
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return False
    fits = len(encoded) <= _LONGEST_PATH and all(len(p) <= _LONGEST_NAME and p != b".." for p in encoded.split(b"/"))
    return fits and b"\0" not in encoded


@lru_cache(maxsize=4096)
def _regex(pattern: str) -> re.Pattern[str]:
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = (special.get(p) or (p.replace("[!", "[^") if re.fullmatch(r"\[[^]]+\]", p) else re.escape(p)) for p in pieces)
    return re.compile("".join(parts), re.DOTALL)


def read_submission(
    task: TaskSpec, pristine: Path, workspace: Path | Mapping[str, bytes | None], *, reserved: frozenset[str] = frozenset()
) -> Submission:
    """Compare a workspace (a folder, or changes to `pristine`) with the task's tree. Raises OSError for an unreadable folder.

    What is more than 1,000 files or 64 MB together is not taken. `reserved` are names of importable modules that a new file on
    the tests' import path must not shadow.
    """
    if isinstance(workspace, Path):
        found: Iterator[tuple[str, bytes | None, bool]] = _changed_in_folder(pristine, workspace)
    else:
        found = _changed_in_mapping(pristine, workspace)
    changes: dict[str, bytes | None] = {}
    rejected = []
    room = _MOST_BYTES
    for path, content, regular in sorted(found, key=lambda item: item[0]):
        fits = len(changes) < _MOST_FILES and len(content or b"") <= room
        if fits and regular and is_editable(task, path) and not _shadows(task, pristine, path, reserved):
            changes[path] = content
            room -= len(content or b"")
        else:
            rejected.append(path)
    return Submission(changes, tuple(rejected))


def _shadows(task: TaskSpec, pristine: Path, path: str, reserved: frozenset[str]) -> bool:
    """Return whether `path` would put a new top-level module over an installed one of the same name."""
    for folder in task.python_path:
        try:
            top = PurePosixPath(path).relative_to(PurePosixPath(folder)).parts[0]
        except (ValueError, IndexError):
            continue
        if top.partition(".")[0] in reserved and not os.path.lexists(pristine / folder / top):
            return True
    return False


def _changed_in_mapping(pristine: Path, changes: Mapping[str, bytes | None]) -> Iterator[tuple[str, bytes | None, bool]]:
    for path, content in changes.items():
        pure = PurePosixPath(path)
        inside = not pure.is_absolute() and ".." not in pure.parts and str(pure) == path and _is_plain(path)
        if not inside or _below_link(pristine, path) or len(content or b"") > _MAX_FILE_BYTES:
            yield path, content, False
        elif content != _regular_content(pristine / path):
            yield path, content, True


def _below_link(root: Path, path: str) -> bool:
    """Return whether `path` is, or lies below, a symbolic link of the tree."""
    parts = path.split("/")
    return any(os.path.islink(root.joinpath(*parts[: n + 1])) for n in range(len(parts)))


def _changed_in_folder(pristine: Path, workspace: Path) -> Iterator[tuple[str, bytes | None, bool]]:
    ours, theirs = _entries(pristine), _entries(workspace, skip_unreadable=True)
    links: dict[tuple[int, int], int] = {}
    for info in theirs.values():
        links[info.st_dev, info.st_ino] = links.get((info.st_dev, info.st_ino), 0) + 1
    for path, info in theirs.items():
        before = ours.get(path)
        if stat.S_ISDIR(info.st_mode):
            if before is not None and not stat.S_ISDIR(before.st_mode):
                yield path, None, False
        elif stat.S_ISLNK(info.st_mode):
            same = before is not None and stat.S_ISLNK(before.st_mode)
            if not same or os.readlink(workspace / path) != os.readlink(pristine / path):
                yield path, None, False
        elif before is None or not _same(workspace / path, info, pristine / path, before):
            content = _regular_content(workspace / path)
            linked_outside = info.st_nlink > links[info.st_dev, info.st_ino]
            yield path, content, content is not None and not linked_outside
    for path, info in ours.items():
        if path not in theirs and not stat.S_ISDIR(info.st_mode) and _parent_is_folder(path, theirs):
            yield path, None, stat.S_ISREG(info.st_mode)


def _same(left: Path, left_info: os.stat_result, right: Path, right_info: os.stat_result) -> bool:
    if not (stat.S_ISREG(left_info.st_mode) and stat.S_ISREG(right_info.st_mode)):
        return False
    if left_info.st_size != right_info.st_size:
        return False
    try:
        with left.open("rb") as mine, right.open("rb") as theirs:
            while chunk := mine.read(_CHUNK):
                if chunk != theirs.read(_CHUNK):
                    return False
            return not theirs.read(1)
    except OSError:  # an unreadable file does not escape grading
        return False


def _parent_is_folder(path: str, entries: Mapping[str, os.stat_result]) -> bool:
    """Return False when a folder of `path` was replaced by something else, which is reported separately."""
    parents = [str(parent) for parent in PurePosixPath(path).parents if str(parent) != "."]
    return all(parent not in entries or stat.S_ISDIR(entries[parent].st_mode) for parent in parents)


def _entries(root: Path, *, skip_unreadable: bool = False) -> dict[str, os.stat_result]:
    """Return every path below `root` without following links; litter left out.

    With `skip_unreadable` a folder below `root` that cannot be read, or is nested too deep, is taken as empty.
    """
    found: dict[str, os.stat_result] = {}
    pending = [""]
    while pending:
        prefix = pending.pop()
        try:
            with os.scandir(root / prefix) as entries:
                inside = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries if entry.name not in LITTER]
        except OSError:
            if skip_unreadable and prefix:
                continue
            raise
        for name, info in inside:
            found[prefix + name] = info
            if stat.S_ISDIR(info.st_mode):
                pending.append(prefix + name + "/")
    return found


def _regular_content(path: Path) -> bytes | None:
    """Return the content of a regular file of sane size, or None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as file:
        info = os.fstat(fd)
        return file.read() if stat.S_ISREG(info.st_mode) and info.st_size <= _MAX_FILE_BYTES else None
