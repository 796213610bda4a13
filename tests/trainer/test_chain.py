"""One run file through every stage, each killed once with `kill -9` and resumed: what a run left alone ends with."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_pretrain import words as pretrain_words  # noqa: F401  (a fixture)
from world import composer, finish

from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.loss.forward.models import load_to_sample
from composer_replication.observe import RunDir
from composer_replication.observe.verdict import run_verdicts

SFT = ["--sft.enabled=true", "--sft.steps=4", "--sft.batch=3", "--sft.learning_rate=1e-2"]
ROOM = ["--rollout.context_tokens=1024", "--rollout.trajectory_tokens=512", "--rollout.turn_tokens=256"]
RL = ["--steps", "3", "--loss.replay.weight", "0"]


def settled(folder: Path) -> Callable[[], bool]:
    """Tell when a checkpoint is there that a resumed stage goes on from."""
    return lambda: any((step / "MANIFEST.sha256").is_file() for step in folder.glob("ckpt/main/step_*") if step.name[-1] in "12")


def rolled_out(folder: Path) -> Callable[[], bool]:
    """Tell when an evaluation has written something."""
    return lambda: any(path.stat().st_size for path in folder.rglob("*.jsonl"))


def killed(run_file: Path, *call: str, when: Callable[[], bool]) -> None:
    """Run until `when` says so, then `kill -9`. A run that is over before has been killed too late, and is an error."""
    process = composer(*call, cwd=run_file.parent)
    while not when():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert process.returncode == -9, "it was over before it was killed"


def chain(run_file: Path, words: list[str], name: str, *, kill: bool) -> Path:
    """Take one model through pre-training, fine-tuning, an evaluation, RL and another evaluation; return the run's folder."""
    common = [str(run_file), *words, *SFT, *ROOM, *RL, "--name", name]
    folder = run_file.parent / "runs" / name
    for stage, place in (
        ("pretrain", folder / "pretrain"),
        ("sft", folder / "sft"),
        ("eval", None),
        ("train", folder),
        ("eval", None),
    ):
        when = rolled_out(folder / "eval") if place is None else settled(place)
        if kill:
            if place is None:  # of the second evaluation, what the first has rolled out stays
                shutil.rmtree(folder / "eval", ignore_errors=True)
            killed(run_file, stage, *common, when=when)
        finish(stage, *common, *(["--resume"] if kill and place is not None else []), cwd=run_file.parent)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    last = latest_checkpoint(folder / "ckpt" / "main")
    assert last is not None
    return load_to_sample(str(last))[0].state_dict()


def results(folder: Path) -> list[dict[str, object]]:
    """Return the results of an evaluation, without the path of the weights."""
    return [{**row, "path": ""} for row in json.loads((folder / "eval" / "results.json").read_text())]


@pytest.mark.slow
@pytest.mark.long
def test_every_stage_killed_and_resumed_ends_the_same(run_file: Path, pretrain_words: list[str]) -> None:  # noqa: F811
    whole, cut = (chain(run_file, pretrain_words, name, kill=kill) for name, kill in (("whole", False), ("cut", True)))
    for stage in ("pretrain", "sft", ""):
        one, other = weights(whole / stage), weights(cut / stage)
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items()), stage
        card = latest_checkpoint(cut / stage / "ckpt" / "main") / "README.md"  # type: ignore[operator]
        assert "## " in card.read_text(), stage
        assert run_verdicts(RunDir(cut / stage)), stage
    assert results(whole) == results(cut)
    assert {row["policy"] for row in results(cut)} == {"start", "pretrain", "sft", "main"}
