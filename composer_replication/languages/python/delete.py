"""Deleting features: a body becomes `raise NotImplementedError`, and every other byte of the file stays as it was."""

from __future__ import annotations

from collections.abc import Iterable

from composer_replication.languages.functions import Function, with_stubs

STUB = "raise NotImplementedError"
"""The body that stands in a task's tree."""


def delete_bodies(source: bytes, functions: Iterable[Function]) -> bytes:
    """Return `source` without the bodies of `functions`, which `find_functions` found in it."""
    return with_stubs(source, functions, STUB)
