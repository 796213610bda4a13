"""A probe: one way out of a sandbox, and what a kind of sandbox may admit about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from composer_replication.sandbox.attempt import Attempt

_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One way out of a sandbox."""

    name: str
    tries: str
    """The attempt, in one phrase."""
    run: Callable[[Attempt], list[str]]
    """Returns what got through. Raises SandboxError when the sandbox broke."""
    excuses: tuple[str, ...] = ()
    """Beginnings of phrases of `Isolation.missing` that admit this gap."""


def shortened(what: Sequence[str]) -> list[str]:
    """Return the first few of many alike, and how many more there are."""
    rest = len(what) - _NAMED
    return [*what[:_NAMED], *([f"{rest} more"] if rest > 0 else [])]
