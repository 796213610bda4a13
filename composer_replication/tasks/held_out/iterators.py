"""Uses of an iterator that programs may ask for, so that honest work may give a list instead."""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.sandbox.grading.programs import Steps
from composer_replication.sandbox.grading.steps.references import needs

_ITER, _NEXT = ["named", "builtins:iter"], ["named", "builtins:next"]


def uses_of(steps: Steps, number: int) -> int:
    """Return how many steps use the result of one."""
    return sum(number in needs(step) for _, step in steps)


def read_again(steps: Steps, iterators: Sequence[int]) -> list[bool]:
    """Return for each step whether it reads an iterator of which one before it has read some: a list would give them again.

    Args:
        iterators: the steps that give one.
    """
    found: list[bool] = []
    origin, latest = {number: number for number in iterators}, {number: number for number in iterators}
    read: set[int] = set()
    for number, step in steps:
        used = {origin[needed] for needed in needs(step) if needed in origin}
        reads = next(iter(needs(step["of"])), -1) if step["do"] == "items" else -1
        found.append(reads in origin and (origin[reads] in read or latest[origin[reads]] != reads))
        if step.get("of") == _ITER and used:  # the same iterator, and another one where it is a list
            origin[number] = min(used)
            latest[origin[number]] = number
        elif step["do"] != "attribute" and step.get("of") != _NEXT:
            read |= used
    return found
