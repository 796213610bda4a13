"""What the prepared world holds, and `composer` as a process of its own, on one thread."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import tomli_w
import torch

from composer_replication.loss.forward.models import save_policy
from composer_replication.quickstart.language import project_path
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.quickstart.warm_start import imitate
from composer_replication.tasks.build import BuildOptions, build_tasks
from composer_replication.tokens import ChatRenderer

# A job in the background of a shell ignores SIGINT, and its children with it: what is tested is a command at a terminal.
_AT_A_TERMINAL = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
COMPOSER = [sys.executable, "-c", _AT_A_TERMINAL + "from composer_replication.cli import main; main()"]


@dataclass(frozen=True)
class World:
    """Folders of tasks and of a barely trained policy."""

    tasks: Path
    held_out: Path
    policy: Path


def make_world(root: Path) -> World:
    world = world_at(root)
    options = BuildOptions(trivial=True, packages=("harbour/cargo.py",), max_tasks=6)
    made = build_tasks(str(project_path("harbour")), root / "built", options)
    for part, names in (("train", made.tasks[:4]), ("held_out", made.tasks[4:])):
        for name in names:
            shutil.copytree(root / "built" / name, root / part / name)
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, 0, hidden=32, layers=2)
    imitate(model, ChatRenderer(tokenizer), steps=60, seed=0, batch_size=4)
    save_policy(model, tokenizer, world.policy)
    return world


def world_at(root: Path) -> World:
    """The world that `make_world` has made there, and this process on one thread."""
    torch.set_num_threads(1)
    return World(tasks=root / "train", held_out=root / "held_out", policy=root / "policy")


def run_text(world: World) -> str:
    """A short run in it."""
    return f"""
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
micro_batch_tokens = 2560
[eval]
every = 2
samples = 2
"""


def composer(*words: str, cwd: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"}
    return subprocess.Popen(
        [*COMPOSER, *words], cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def name_teachers(run_file: Path, url: str, *, usd_per_million_output: float = 0.0, max_total_usd: float = 0.0) -> None:
    """Two teachers behind one endpoint, `one` and `other`."""
    prices = {"usd_per_million_input": 0.0, "usd_per_million_output": usd_per_million_output}
    rows = [{"name": name, "model": name, "base_url": url, "api_key_env": "", **prices} for name in ("one", "other")]
    replay = {"verify": False, "max_total_usd": max_total_usd}
    data = tomllib.loads(run_file.read_text()) | {"teachers": rows, "loss": {"replay": replay}}
    run_file.write_text(tomli_w.dumps(data))


def finish(*words: str, cwd: Path) -> str:
    process = composer(*words, cwd=cwd)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output
