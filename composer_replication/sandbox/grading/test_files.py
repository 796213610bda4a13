"""Which files of a project are its tests, by pytest's naming: programs over its code run where these are not to be read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.sandbox.protocol import Tree
from composer_replication.types.errors import SandboxError

TEST_FOLDERS = frozenset({"test", "tests"})
_TEST_FILES = ("test_*.py", "*_test.py")
_AT_ROOT = ("test.py", "tests.py")


def is_test_file(path: str) -> bool:
    """Return whether pytest takes the file at this POSIX path, relative to the project's root, for a test."""
    name = path.rpartition("/")[2]
    return path in _AT_ROOT or any(fnmatchcase(name, pattern) for pattern in _TEST_FILES)


def around_tests(tests: Iterable[str]) -> list[str]:
    """Return where test files lie: the outermost `test` or `tests` folder around each, or the file itself."""
    found = set()
    for path in tests:
        folders = path.split("/")[:-1]
        depth = next((n for n, folder in enumerate(folders) if folder in TEST_FOLDERS), None)
        found.add(path if depth is None else "/".join(folders[: depth + 1]))
    return sorted(found)


def below(path: str, roots: Iterable[str]) -> bool:
    """Return whether `path` is one of `roots` or lies in one."""
    return any(root == "." or path == root or path.startswith(root + "/") for root in roots)


def without_tests(tree: Tree) -> Tree:
    """Return the tree without its tests, all that lies in a folder with them, and every `conftest.py`.

    Raises SandboxError when the base cannot be listed.
    """
    try:
        made = os.stat(tree.base)
        hidden = _hidden(tree.base, made.st_ino, made.st_mtime_ns)
    except OSError as error:
        raise SandboxError(f"{tree.base} cannot be listed: {error}", fix="make it readable") from error
    kept = {path: content for path, content in tree.changes.items() if not below(path, hidden)}
    return replace(tree, changes={**kept, **dict.fromkeys(hidden)})


@lru_cache(maxsize=256)
def _hidden(base: Path, _number: int, _written_ns: int) -> tuple[str, ...]:
    """Return the files and folders to leave out. A base is never written to, and one that takes another's place is another
    folder, so the list serves every submission of a task."""
    with OpenFolder(base) as folder:
        listing = folder.listing(skip=frozenset({".git"}))
    for error in listing.unreadable.values():
        raise error
    files = [path for path, entry in listing.entries.items() if not stat.S_ISDIR(entry.info.st_mode)]
    roots = around_tests(path for path in files if is_test_file(path))
    loose = (path for path in files if path.rpartition("/")[2] == "conftest.py" and not below(path, roots))
    return (*roots, *loose)
