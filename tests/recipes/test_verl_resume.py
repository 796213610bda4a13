"""An arm on verl goes on only with the weights, tasks and pairs it was begun with; it is refused before verl starts."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console

from composer_replication.config import load_config
from composer_replication.embedded.policy import tiny_model, tiny_tokenizer
from composer_replication.errors import BackendError, CheckpointError
from composer_replication.observe import RunDir, Terminal
from composer_replication.recipes.verl import substrate
from composer_replication.trainer.models import save_policy

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
from world import make_world, run_text

pytestmark = pytest.mark.slow  # tasks are built for it


class BeganError(BackendError):
    """verl would run now."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def begun(world, tmp_path, monkeypatch):
    """`go()` begins or resumes a run that has taken a step; its folder, with tasks and policy of its own."""
    shutil.copytree(world.tasks, tmp_path / "tasks")
    shutil.copytree(world.policy, tmp_path / "policy")
    text = run_text(world).replace(str(world.tasks), str(tmp_path / "tasks")).replace(str(world.policy), str(tmp_path / "policy"))
    (tmp_path / "run.toml").write_text(text + '[substrate]\ntype = "verl"\n[loss.replay]\nweight = 0.0\n')
    run = tmp_path / "runs" / "run"

    async def begins(*_):
        raise BeganError("verl would run now")

    monkeypatch.setattr(substrate, "_run", begins)

    def go():
        run_dir = RunDir(run) if RunDir.has_begun(run) else RunDir.create(run)
        config = load_config(tmp_path / "run.toml", ["--rollout.groups", "1"])
        asyncio.run(substrate.train(config, run_dir, Terminal(Console(quiet=True))))

    with pytest.raises(BeganError):
        go()
    saved = run / "verl" / "main" / "checkpoints" / "latest_checkpointed_iteration.txt"
    saved.parent.mkdir(parents=True)
    saved.write_text("1")
    with pytest.raises(BeganError):
        go()
    return go


def test_other_tasks_are_named(begun, tmp_path):
    shutil.rmtree(sorted((tmp_path / "tasks").iterdir())[0])
    with pytest.raises(CheckpointError, match="was made with other tasks than the run file names now") as refused:
        begun()
    assert refused.value.fix == "restore the tasks, or give the new run another name"


def test_other_starting_weights_are_named(begun, tmp_path):
    tokenizer = tiny_tokenizer()
    save_policy(tiny_model(tokenizer, 1, hidden=32, layers=2), tokenizer, tmp_path / "policy")
    with pytest.raises(CheckpointError, match="was made with other starting weights"):
        begun()


def test_pairs_that_were_not_collected_are_named(begun, tmp_path):
    pairs = tmp_path / "runs" / "run" / "ckpt" / "main" / "pairs.jsonl"
    pairs.parent.mkdir(parents=True, exist_ok=True)
    pairs.write_text("{}\n")
    with pytest.raises(CheckpointError, match=r"pairs\.jsonl: missing or not what was collected"):
        begun()


def test_an_arm_of_which_nothing_is_known_is_not_gone_on_with(begun, tmp_path):
    (tmp_path / "runs" / "run" / "verl" / "main" / "made_of.json").unlink()
    with pytest.raises(CheckpointError, match=r"made_of\.json is missing"):
        begun()
