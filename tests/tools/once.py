"""What several workers of one test run need and none changes is made by the first of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` has filled once in this run, whichever worker asked first. The others wait for it.

    When `make` fails, the next worker starts again with an empty folder.
    """
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = shared / f"{name}.done"
        if not done.exists():
            folder = factory.mktemp(name)
            make(folder)
            done.write_text(str(folder))
        return Path(done.read_text())
