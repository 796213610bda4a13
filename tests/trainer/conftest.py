"""A tiny prepared world: six tasks from an embedded project and a barely trained policy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "teachers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "loss"))
from once import made_once  # of tests/tools
from world import World, make_world, run_text, world_at  # beside this file


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world_at(made_once(tmp_path_factory, "world", make_world))


@pytest.fixture
def run_file(world: World, tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(run_text(world))
    return path
