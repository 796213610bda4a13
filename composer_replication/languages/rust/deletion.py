"""Deleting features from Rust: a body becomes a panic. Imports that nothing uses then are warnings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from composer_replication.languages.functions import Function, with_stubs

STUB = "unimplemented!()"
"""The body that stands in a task's tree."""


def without_bodies(files: Mapping[str, bytes], functions: Iterable[Function]) -> dict[str, bytes]:
    """Return the files that change when the bodies of `functions` are deleted."""
    by_path: dict[str, list[Function]] = {}
    for function in functions:
        by_path.setdefault(function.path, []).append(function)
    return {path: with_stubs(files[path], found, STUB) for path, found in by_path.items()}
