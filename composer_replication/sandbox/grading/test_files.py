"""Which files of a project are its tests, by pytest's naming: programs over its code run where these are not to be read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from composer_replication.sandbox.protocol import Tree

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
    """Return the tree without its tests, all that lies in a folder with them, and every `conftest.py`."""
    files = list(_files(tree.base))
    roots = around_tests(path for path in files if is_test_file(path))
    hidden = [path for path in files if path.rpartition("/")[2] == "conftest.py" or below(path, roots)]
    return replace(tree, changes={**tree.changes, **dict.fromkeys(hidden)})


def _files(base: Path) -> Iterator[str]:
    """Yield the POSIX paths below `base` of everything that is not a folder; no link is followed, and `.git` is left out."""
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(base / folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending += [path] if entry.name != ".git" else []
                else:
                    yield path
