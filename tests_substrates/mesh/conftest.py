"""Meshes that leave no process behind, and the tiny world of the trainer's tests."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = (HERE, ROOT / "tests" / "trainer", ROOT / "tests" / "teachers", ROOT / "tests_substrates" / "shared")
for folder in FOLDERS:
    sys.path.insert(0, str(folder))
os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, FOLDERS), os.environ.get("PYTHONPATH", "")])  # for the actors' processes
os.environ["OMP_NUM_THREADS"] = "1"

MESHES = {"ray": "RayMesh", "monarch": "MonarchMesh"}
AVAILABLE = [name for name in MESHES if find_spec(f"composer_replication.recipes.{name}") and find_spec(name) is not None]
HANG_S = 1200


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "default")


@pytest.fixture(params=AVAILABLE)
def kind(request):
    """The type of the substrate."""
    return request.param


@pytest.fixture
def on_mesh(kind):
    """`on_mesh(work)` runs `work(mesh)`; no process that the mesh has started is left then.

    With `boxes`, the work opens a sandbox in this process, whose launcher stays as long as it does; nothing is asserted then.
    """

    from living import children, gone  # in tests_substrates/shared

    def run(work, *, boxes=False):
        async def open_and_close():
            mesh = getattr(importlib.import_module(f"composer_replication.recipes.{kind}.mesh"), MESHES[kind])()
            try:
                async with asyncio.timeout(HANG_S):
                    return await work(mesh)
            finally:
                await mesh.close()
                await mesh.close()

        before = children()
        try:
            return asyncio.run(open_and_close())
        finally:
            assert boxes or gone(before)

    return run


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    from world import make_world  # beside the trainer's tests

    return make_world(tmp_path_factory.mktemp("world"))
