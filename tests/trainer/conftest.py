"""A tiny prepared world: six tasks from an embedded project and a barely trained policy."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from composer_replication.embedded.language import project_path
from composer_replication.embedded.policy import tiny_model, tiny_tokenizer
from composer_replication.embedded.warm_start import imitate
from composer_replication.tasks.build import BuildOptions, build_tasks
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.models import save_policy

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "teachers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "losses"))
from world import World  # beside this file


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("world")
    options = BuildOptions(packages=("harbour/cargo.py",), max_tasks=6)
    made = build_tasks(str(project_path("harbour")), root / "built", options)
    for part, names in (("train", made.tasks[:4]), ("held_out", made.tasks[4:])):
        for name in names:
            shutil.copytree(root / "built" / name, root / part / name)
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, 0, hidden=32, layers=2)
    imitate(model, ChatRenderer(tokenizer), steps=60, seed=0, batch_size=4)
    save_policy(model, tokenizer, root / "policy")
    return World(tasks=root / "train", held_out=root / "held_out", policy=root / "policy")


@pytest.fixture
def run_file(world: World, tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
name = "run"
steps = 4
checkpoint_every = 1
threads = 1
[model]
path = "{world.policy}"
device = "cpu"
[tasks]
train = "{world.tasks}"
held_out = "{world.held_out}"
[rollout]
groups = 2
group_size = 3
turn_tokens = 48
trajectory_tokens = 144
context_tokens = 640
max_turns = 4
[optimizer]
learning_rate = 1e-3
micro_batch_size = 4
[eval]
every = 2
samples = 2
"""
    )
    return path
