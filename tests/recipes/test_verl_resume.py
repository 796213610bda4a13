"""An arm on verl goes on only with the weights, tasks and pairs it was begun with; it is refused before verl starts."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console

from composer_replication.config import load_config
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.loss.forward.models import save_policy
from composer_replication.observe import RunDir, Terminal
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.recipes.verl import substrate
from composer_replication.trainer.report import train
from composer_replication.types.errors import BackendError, CheckpointError

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
from once import made_once
from world import make_world, run_text, world_at

pytestmark = pytest.mark.slow  # tasks are built for it


class BeganError(BackendError):
    """verl would run now."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return world_at(made_once(tmp_path_factory, "world", make_world))


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
        asyncio.run(train(config, run_dir, Terminal(Console(quiet=True)), one=substrate.train_arm))

    with pytest.raises(BeganError):
        go()
    saved = run / "verl" / "main" / "checkpoints" / "latest_checkpointed_iteration.txt"
    saved.parent.mkdir(parents=True)
    saved.write_text("1")
    RunDir(run).log_metrics("main", 1, {})
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


def test_a_step_that_was_saved_and_not_logged_is_taken_again(tmp_path):
    said = tmp_path / "latest_checkpointed_iteration.txt"
    for step in (2, 4):
        (tmp_path / f"global_step_{step}").mkdir()
    said.write_text("4")
    assert substrate._resume_at(tmp_path, recorded=4) == 4
    assert substrate._resume_at(tmp_path, recorded=3) == 2
    assert said.read_text() == "2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_2", said.name]
    assert substrate._resume_at(tmp_path, recorded=0) == 0
    assert not said.exists()
    assert substrate._resume_at(tmp_path, recorded=0) == 0


def test_weights_of_a_run_that_verl_has_ended_are_kept_when_it_goes_on(begun, tmp_path, monkeypatch):
    """Killed after verl's last step, before its weights were taken over."""
    run, steps = tmp_path / "runs" / "run", load_config(tmp_path / "run.toml").steps
    checkpoints = run / "verl" / "main" / "checkpoints"
    shutil.copytree(tmp_path / "policy", checkpoints / f"global_step_{steps}" / "actor" / "huggingface")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(steps))
    RunDir(run).log_metrics("main", steps, {"eval/pass_at_1": 0.5, "eval/pass_at_1_se": 0.1})
    begun()
    assert latest_checkpoint(run / "ckpt" / "main") is not None
