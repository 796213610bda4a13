"""A tiny prepared world: six tasks from an embedded project and a barely trained policy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "teachers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "loss"))
from once import made_once  # of tests/tools
from world import World, make_world, run_text, world_at  # beside this file


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return world_at(made_once(tmp_path_factory, "world", make_world))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Operations on small tensors take several times as long on two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run_file(world: World, tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(run_text(world))
    return path
