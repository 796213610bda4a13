from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
from once import made_once  # of tests/tools
from world import World, make_world, world_at  # of tests/trainer


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world_at(made_once(tmp_path_factory, "world", make_world))
