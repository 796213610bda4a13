"""Files of a tree, the same for every language that reads them on the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from composer_replication.sandbox.beneath import OpenFolder
from composer_replication.sandbox.grading.test_files import below
from composer_replication.sandbox.protocol import Tree
from composer_replication.types.errors import SandboxError


def files_of(tree: Tree) -> list[str]:
    """Return the paths of a tree's files, in order. Raises SandboxError when the base cannot be listed."""
    try:
        made = tree.base.stat()
        base = _listed(tree.base, made.st_ino, made.st_mtime_ns)
    except OSError as error:
        raise SandboxError(f"{tree.base} cannot be listed: {error}", fix="make it readable") from error
    gone = [path for path, content in tree.changes.items() if content is None]
    return sorted(path for path in {*base, *tree.changes} if not below(path, gone))


@lru_cache(maxsize=64)
def _listed(base: Path, _number: int, _written_ns: int) -> tuple[str, ...]:
    """Return the files of a folder, which is never written to."""
    with OpenFolder(base) as folder:
        return tuple(folder.listing(skip=frozenset({".git", "node_modules"})).entries)


def content_of(tree: Tree, path: str) -> bytes:
    """Return a file of a tree; nothing where it has none. Raises SandboxError when it cannot be read."""
    if path in tree.changes:
        return tree.changes[path] or b""
    try:
        return (tree.base / path).read_bytes() if (tree.base / path).is_file() else b""
    except OSError as error:
        raise SandboxError(f"{tree.base / path} cannot be read: {error}", fix="make it readable") from error


def without_files(tree: Tree, gone: Iterable[str]) -> Tree:
    """Return the tree without some of its files."""
    left_out = set(gone)
    kept = {path: content for path, content in tree.changes.items() if path not in left_out}
    return replace(tree, changes={**kept, **{path: None for path in sorted(left_out) if (tree.base / path).is_file()}})
