"""Deleting features from Go: a body becomes a panic, and imports that nothing uses then go with it, as the compiler wants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from composer_replication.languages.functions import Function, files_with_stubs
from composer_replication.languages.go.syntax import imports_of, root_of, used_packages

STUB = 'panic("not implemented")'
"""The body that stands in a task's tree."""


def without_bodies(files: Mapping[str, bytes], functions: Iterable[Function]) -> dict[str, bytes]:
    """Return the files that change when the bodies of `functions` are deleted."""
    changed = files_with_stubs(files, functions, STUB)
    return {path: without_unused_imports(files[path], content) for path, content in changed.items()}


def without_unused_imports(before: bytes, after: bytes) -> bytes:
    """Return `after` without the imports that `before` uses and it does not.

    What neither uses by a name that its path suggests is left alone: a package may have any name.
    """
    root = root_of(after)
    used_before, used_after = used_packages(root_of(before)), used_packages(root)
    for found in sorted(imports_of(root), key=lambda one: one.first_byte, reverse=True):
        names = set(found.names)
        if names & used_before and not names & used_after:
            start, end = found.first_byte, found.last_byte
            line_start = after.rfind(b"\n", 0, start) + 1
            if not after[line_start:start].strip():
                start = line_start
                newline = after.find(b"\n", end)
                end = newline + 1 if newline >= 0 and not after[end:newline].strip() else end
            after = after[:start] + after[end:]
    return after
