"""The tasks of a step, as a function of its number alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def choose_tasks(tasks: Sequence[T], seed: int, step: int, count: int) -> list[T]:
    """Return the tasks of a step (1-based), none of them twice; every pass over all tasks is a new permutation.

    A function of its arguments alone, so the data cursor of a resumed run is its step. Raises ValueError when there are fewer
    than `count` tasks.
    """
    if count > len(tasks):
        raise ValueError(f"a step cannot take {count} of {len(tasks)} tasks")
    first = (step - 1) * count
    before: list[int] = []
    order: list[int] = []
    period = count // math.gcd(count, len(tasks))  # so many passes on, a pass begins with a step again
    begin = first // len(tasks) // period * period
    for epoch in range(begin, (first + count - 1) // len(tasks) + 1):
        before, order = order, list(range(len(tasks)))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        begun = epoch * len(tasks) % count
        if begun:  # the pass begins inside a step, where the end of the pass before has been taken already
            fresh = [t for t in order if t not in before[-begun:]][: count - begun]
            order = fresh + [t for t in order if t not in fresh]
    start = first % len(tasks)
    spanned = start + count > len(tasks)
    both = before + order if spanned else order
    return [tasks[i] for i in both[start : start + count]]
