"""A Monarch mesh that leaves no process behind."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from composer_replication.recipes.monarch.mesh import MonarchMesh

HERE = Path(__file__).parent
TRAINER = HERE.parents[1] / "tests" / "trainer"
sys.path[:0] = [str(HERE), str(HERE.parent / "shared"), str(TRAINER)]  # for modules that the processes of actors import too
HANG_S = 600


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")  # other libraries may warn about themselves


def processes() -> set[int]:
    """Those that this process has started, and theirs."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just gone
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    mine, more = set(), {os.getpid()}
    while more:
        mine |= more
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
    return mine - {os.getpid()}


@pytest.fixture
def on_mesh():
    """`on_mesh(work, **options)` runs `work(mesh)` and closes the mesh; nothing that the mesh has started is left then."""

    def run(work, **options):
        async def open_and_close():
            mesh = MonarchMesh(**options)
            try:
                async with asyncio.timeout(HANG_S):
                    return await work(mesh)
            finally:
                await mesh.close()

        before = processes()
        try:
            return asyncio.run(open_and_close())
        finally:
            assert processes() <= before

    return run
