"""The agent's view of a repository: a read-only folder and the files that differ from it, as plain data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from composer_replication.sandbox import Tree
from composer_replication.sandbox.changes import LITTER


class Workspace:
    """Text files under one root. Links and files that are not UTF-8 are not shown.

    Args:
        base: the folder; never written to, and assumed not to change.
        changes: POSIX paths relative to the root -> new content, or None for a deleted file.
    """

    def __init__(self, base: Path, changes: Mapping[str, bytes | None] | None = None) -> None:
        self._base = base
        self.changes: dict[str, bytes | None] = dict(changes or {})

    @property
    def tree(self) -> Tree:
        """The tree that a sandbox command sees."""
        return Tree(base=self._base, changes=dict(self.changes))

    def files(self) -> list[str]:
        """Return every file's path, sorted."""
        gone = {path for path, content in self.changes.items() if content is None}
        written = self.changes.keys() - gone
        return sorted((set(_files_of(self._base)) - gone) | written)

    def read(self, path: str) -> str | None:
        """Return a file's text, or None when there is no such text file. `path` must be `normalized`."""
        if path in self.changes:
            content = self.changes[path]
        elif path in _files_of(self._base):
            content = (self._base / path).read_bytes()
        else:
            return None
        try:
            return None if content is None else content.decode()
        except UnicodeDecodeError:
            return None

    def write(self, path: str, text: str) -> None:
        """Replace or create a file."""
        content = text.encode()
        if path in _files_of(self._base) and (self._base / path).read_bytes() == content:
            self.changes.pop(path, None)
        else:
            self.changes[path] = content

    def delete(self, path: str) -> None:
        """Remove a file that is there."""
        if path in _files_of(self._base):
            self.changes[path] = None
        else:
            del self.changes[path]

    def blocks(self, path: str) -> bool:
        """Return whether `path` cannot be a file: it is a folder, or one of its folders is a file."""
        files = self.files()
        return any(f.startswith(path + "/") or path.startswith(f + "/") for f in files)

    def digest(self) -> str:
        """Return the SHA-256 over the changes: equal for workspaces of one base with equal content."""
        digest = hashlib.sha256()
        for path in sorted(self.changes):
            content = self.changes[path]
            size = -1 if content is None else len(content)
            digest.update(f"{len(path.encode())} {path} {size} ".encode() + (content or b""))
        return digest.hexdigest()


def normalized(path: str) -> str | None:
    """Return `path` without `.` and doubled slashes (the root itself is `""`), or None when it leads outside the root."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "\0" in path:
        return None
    return "/".join(parts)


@lru_cache(maxsize=256)
def _files_of(base: Path) -> frozenset[str]:
    """Return regular files below `base` whose names are text; links are not followed."""
    found = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        with os.scandir(base / prefix) as entries:
            for entry in entries:
                if entry.name in LITTER or not entry.name.isprintable():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(prefix + entry.name + "/")
                elif entry.is_file(follow_symlinks=False):
                    found.append(prefix + entry.name)
    return frozenset(found)
