"""The gradable part of a workspace: the changed files the task's allow list names, and nothing that could change the rules."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BufferedReader
from pathlib import Path, PurePosixPath

from composer_replication.sandbox.beneath import Entry, OpenFolder, TooManyEntriesError
from composer_replication.sandbox.changes import LITTER
from composer_replication.types import TaskSpec

_NEVER = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "setup.py", "*.pth"),
    *("*_test.go", "zz_composer_*", "go.mod", "go.sum", "go.work", "*.s"),
    *("pom.xml", "*.gradle", "*.gradle.kts", "module-info.java", "package-info.java", "*.jar"),
    *("package.json", ".*rc.js", ".*rc.[cm]js", ".*rc.ts", "*.config.[jt]s", "*.config.[cm][jt]s"),
    *("Cargo.toml", "Cargo.lock", "build.rs", "rust-toolchain", "rust-toolchain.toml"),
    *(f"*.{kind}.{ending}" for kind in ("test", "spec") for ending in ("[jt]s", "[jt]sx", "[cm][jt]s")),
)
_NEVER_MODULES = ("sitecustomize.py", "usercustomize.py")
"""Files that change what a test means or when code runs; not taken even where an allow list is careless."""

_MAX_FILE_BYTES = 4 << 20
_CHUNK = 1 << 20
_MOST_FILES, _MOST_BYTES = 1000, 64 << 20
"""Limits on all files together: work too large for the sandbox gets no verdict, and an agent must not be able to cause that."""
_MOST_ENTRIES = 200_000
"""Files and folders of a workspace."""
_LONGEST_NAME, _LONGEST_PATH = 255, 1000
"""Bytes a file system takes for a name, and the most of a path."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The graded difference between a workspace and the task's own tree."""

    changes: dict[str, bytes | None]
    """Editable files that differ, in order of path; None for a deleted one."""
    rejected: tuple[str, ...]
    """Changed paths that are not taken."""
    deciding: tuple[str, ...] = ()
    """Those of them that would decide what a test means, or which module is imported."""


def is_editable(task: TaskSpec, path: str) -> bool:
    """Return whether the allow list names `path` (POSIX, relative): `*` and `?` stay within a folder, `**` crosses folders."""
    if not _is_plain(path) or _decides(path):
        return False
    tests = () if task.tests_in_sources else (*task.fail_to_pass, *task.pass_to_pass)
    if any(test_id.partition("::")[0] == path for test_id in tests):
        return False
    return any(_regex(pattern).fullmatch(path) for pattern in task.editable)


def editable_patterns(task: TaskSpec) -> list[str]:
    """Return the allow list as regular expressions of paths."""
    return [_regex(pattern).pattern for pattern in task.editable]


def _decides(path: str) -> bool:
    """Return whether a file of that name changes what a test means or when code runs."""
    *folders, name = path.split("/")
    return ".cargo" in folders or any(fnmatch.fnmatchcase(name, pattern) for pattern in (*_NEVER, *_NEVER_MODULES))


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

    What is more than 1,000 files or 64 MB together is not taken, and of a folder with more than 200,000 files and folders
    nothing. `reserved` are names of importable modules that a new file on the tests' import path must not shadow.

    A folder may still be changing: nothing outside of it is read, but the files may come from different moments. End the
    processes that can write to it first where the verdict must be about one state.
    """
    if isinstance(workspace, Path):
        found: Iterator[tuple[str, bytes | None, bool]] = _changed_in_folder(pristine, workspace)
    else:
        found = _changed_in_mapping(pristine, workspace)
    changes: dict[str, bytes | None] = {}
    rejected, deciding = [], []
    room = _MOST_BYTES
    try:
        for path, content, regular in found:
            fits = len(changes) < _MOST_FILES and len(content or b"") <= room
            if fits and regular and is_editable(task, path) and not _shadows(task, pristine, path, reserved):
                changes[path] = content
                room -= len(content or b"")
            else:
                rejected.append(path)
                if _decides(path) or _shadows(task, pristine, path, reserved):
                    deciding.append(path)
    except TooManyEntriesError as error:
        return Submission({}, (f"everything: {error.strerror}",))
    return Submission(changes, tuple(rejected), tuple(deciding))


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
    for path, content in sorted(changes.items()):
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
    """Compare two folders; at most one file's content is held at a time. Raises OSError as `OpenFolder` does."""
    with OpenFolder(pristine.resolve()) as base, OpenFolder(workspace) as work:
        ours, theirs = base.listing(LITTER).entries, work.listing(LITTER, most=_MOST_ENTRIES).entries
        for path in sorted(ours.keys() | theirs.keys()):
            before, now = ours.get(path), theirs.get(path)
            if now is None:
                if before is not None and not stat.S_ISDIR(before.info.st_mode) and _parent_is_folder(path, theirs):
                    yield path, None, stat.S_ISREG(before.info.st_mode)
            elif stat.S_ISDIR(now.info.st_mode):
                if before is not None and not stat.S_ISDIR(before.info.st_mode):
                    yield path, None, False
            elif stat.S_ISLNK(now.info.st_mode):
                if before is None or not stat.S_ISLNK(before.info.st_mode) or before.target != now.target:
                    yield path, None, False
            else:
                changed, content = _changed_file(work, base, path, before)
                if changed:
                    yield path, content, content is not None


def _changed_file(work: OpenFolder, base: OpenFolder, path: str, before: Entry | None) -> tuple[bool, bytes | None]:
    """Return whether a file differs from the task's, and what it holds; None for one that may not be taken.

    That is one that is too large, cannot be read, is not a regular file, or has a second name: a hard link to the solution looks
    like any file of the workspace.
    """
    try:
        with work.file(path) as (file, info):
            if before is not None and stat.S_ISREG(before.info.st_mode) and info.st_size == before.info.st_size:
                with base.file(path) as (original, _):
                    if _same(file, original):
                        return False, None
                file.seek(0)
            taken = info.st_size <= _MAX_FILE_BYTES and work.is_only_name(path, file)
            content = file.read(_MAX_FILE_BYTES + 1) if taken else None
    except OSError:  # an unreadable file does not escape grading
        return True, None
    return True, content if content is not None and len(content) <= _MAX_FILE_BYTES else None


def _same(left: BufferedReader, right: BufferedReader) -> bool:
    while chunk := left.read(_CHUNK):
        if chunk != right.read(_CHUNK):
            return False
    return not right.read(1)


def _parent_is_folder(path: str, entries: Mapping[str, Entry]) -> bool:
    """Return False when a folder of `path` was replaced by something else, which is reported separately."""
    parents = [str(parent) for parent in PurePosixPath(path).parents if str(parent) != "."]
    return all(parent not in entries or stat.S_ISDIR(entries[parent].info.st_mode) for parent in parents)


def _regular_content(path: Path) -> bytes | None:
    """Return the content of a regular file of sane size, or None."""
    try:
        with OpenFolder(path.parent.resolve()) as folder:
            return folder.read(path.name, _MAX_FILE_BYTES)
    except OSError:
        return None
