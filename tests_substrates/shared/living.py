"""Which processes are there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

HANG_S = 300


def children() -> set[int]:
    """Living processes that this one has started, and theirs."""
    parents = _parents()
    found, more = set(), {os.getpid()}
    while more:
        found |= more
        more = {pid for pid, parent in parents.items() if parent in found} - found
    return found - {os.getpid()}


def gone(before: set[int]) -> bool:
    """Waits until there are no children but those of `before`; False when some stay."""
    return _comes(lambda: children() <= before)


def gone_all(pids: Iterable[int]) -> bool:
    """Waits until none of these is alive; False when some stay."""
    wanted = set(pids)
    return _comes(lambda: not wanted & _parents().keys())


def _parents() -> dict[int, int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # it has just gone
                continue
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    return parents


def _comes(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
