"""A call of a function, and what it gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from composer_replication.languages.calls.values import Value

Answer: TypeAlias = dict[str, Any]
"""`r` results, `a` what was given, afterwards; with details `b` the same before, `z` zero values of the results, `h` blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """A function and the values that it is given."""

    key: str
    """`path::name`."""
    how: Mapping[str, Any]
    """What the language needs beside that to make the call: plain data."""
    given: tuple[Value, ...]
    """The object that a method is called on comes first."""


def is_inside(path: object) -> bool:
    """Return whether untrusted data is a path that stays within a tree."""
    plain = isinstance(path, str) and bool(path) and path.isprintable()
    return plain and not str(path).startswith("/") and ".." not in str(path).split("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutCall:
    """A call that no test makes, what the gold code answers, and what it answers to the test's call that this was varied from."""

    call: FunctionCall
    answer: Answer
    near: Answer
