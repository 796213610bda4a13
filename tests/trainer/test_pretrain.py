"""Continued pre-training: text is learnt, what follows starts from it, and nothing is lost when it is killed."""

from __future__ import annotations

import json
import textwrap
import time
import tomllib
from pathlib import Path

import pytest
import torch
from in_process import composer_here
from test_sft import nll
from world import composer, finish

from composer_replication.config import load_config
from composer_replication.loss.forward.models import load_to_sample
from composer_replication.observe import RunDir
from composer_replication.observe.verdict import Learnt, run_verdicts
from composer_replication.trainer.stages.before import started_from
from composer_replication.trainer.stages.order import BEFORE_RL
from composer_replication.trainer.stages.pretrain import PRETRAIN
from composer_replication.trainer.stages.reading import _group
from composer_replication.types.errors import ConfigError

STEPS = 6


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Settings of a stage that reads three modules of the standard library."""
    folder = tmp_path / "text"
    folder.mkdir()
    for module in (json.decoder, json.encoder, textwrap, json.scanner):
        lines = Path(module.__file__ or "").read_text().splitlines(keepends=True)
        for at in range(0, len(lines), 20):
            (folder / f"{module.__name__}_{at}.py").write_text("".join(lines[at : at + 20]))
    settings = {
        **{"enabled": "true", "sources": f'["{folder}"]', "licences": "[]", "near_duplicates": "0", "fim_rate": "0"},
        **{
            "passage_tokens": "128",
            "batch_tokens": "2048",
            "steps": str(STEPS),
            "learning_rate": "1e-2",
            "held_out_share": "0.2",
        },
    }
    return [f"--pretrain.{name}={value}" for name, value in settings.items()]


@pytest.mark.slow
def test_text_is_learnt_and_fine_tuning_starts_from_it(run_file: Path, words: list[str]) -> None:
    folder = run_file.parent
    refused = composer_here("train", str(run_file), *words, cwd=folder)
    assert refused.returncode == 2
    assert "run `composer pretrain` with this run file first" in refused.stderr
    output = finish("pretrain", str(run_file), *words, cwd=folder)
    assert "are held out" in output
    assert "VERDICT on main: the policy learnt: " in output
    assert "nan" not in output
    run = RunDir(folder / "runs" / "run" / "pretrain")
    lines = run.read_metrics()
    assert [line.step for line in lines] == [*range(STEPS + 1)]
    assert lines[-1].values["pretrain/nll"] < lines[0].values["pretrain/nll"] - 0.1
    assert [verdict.learnt for verdict in run_verdicts(run)] == [Learnt.BETTER]
    _, step_one = started_and_first_step(run_file, words)
    assert lines[1].values["lm_ce/loss"] == pytest.approx(step_one, rel=1e-4)
    sft = ["--sft.enabled=true", "--sft.steps=1", "--sft.batch=2", "--rollout.context_tokens=2048"]
    sft += ["--rollout.trajectory_tokens=1024", "--rollout.turn_tokens=512"]
    finish("sft", str(run_file), *words, *sft, cwd=folder)
    finish("train", str(run_file), *words, *sft, "--steps", "1", cwd=folder)
    paths = [tomllib.loads((folder / "runs/run" / name / "config.toml").read_text())["model"]["path"] for name in ("sft", "")]
    assert [path.partition("/runs/run/")[2] for path in paths] == ["pretrain/ckpt/main/step_00006", "sft/ckpt/main/step_00001"]


def started_and_first_step(run_file: Path, words: list[str]) -> tuple[torch.nn.Module, float]:
    """Return the start and the loss of its first step, read one token after the other."""
    from composer_replication.trainer.corpus.passages import Corpus

    config = PRETRAIN.run_of(load_config(run_file, words))
    model, tokenizer = load_to_sample(config.model.path)
    corpus = Corpus.read(config.pretrain, [], tokenizer, config.seed)
    found = [nll(model, _group(place, corpus.passages[place]).trajectories[0]) for place in corpus.steps[0]]
    return model, sum(loss for loss, _ in found) / sum(count for _, count in found)


@pytest.mark.slow
def test_killed_and_resumed_it_ends_as_if_nothing_had_happened(run_file: Path, words: list[str]) -> None:
    call = ["pretrain", str(run_file), *words]
    finish(*call, "--name", "whole", cwd=run_file.parent)
    process = composer(*call, "--name", "cut", cwd=run_file.parent)
    run = run_file.parent / "runs" / "cut" / "pretrain"
    while not (run / "ckpt" / "main" / "step_00002").is_dir():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    text = next((run_file.parent / "text").iterdir())
    before = text.read_text()
    text.write_text(before + "\nchanged = 1\n")
    refused = composer_here(*call, "--name", "cut", "--resume", cwd=run_file.parent)
    assert "was made with other corpus" in refused.stderr
    text.write_text(before)
    output = finish(*call, "--name", "cut", "--resume", cwd=run_file.parent)
    assert "resumed at step" in output
    folders = [run_file.parent / "runs" / name / "pretrain" for name in ("whole", "cut")]
    one, other = (load_to_sample(str(folder / f"ckpt/main/step_{STEPS:05d}"))[0].state_dict() for folder in folders)
    assert all(torch.equal(weights, other[name]) for name, weights in one.items())
    nlls = [
        [line.values["pretrain/nll"] for line in RunDir(folder).read_metrics() if "pretrain/nll" in line.values]
        for folder in folders
    ]
    assert nlls[0] == nlls[1]


def test_the_stage_is_a_run_without_rollouts(run_file: Path, words: list[str]) -> None:
    served = ["--rollout.engine=vllm", "--rollout.server_url=http://a:1", "--loss.rlvr.importance=icepop", "--sft.enabled=true"]
    stage = PRETRAIN.run_of(load_config(run_file, [*words, *served]))
    assert (stage.name, stage.steps, list(stage.arms), stage.rollout.engine) == ("pretrain", STEPS, ["main"], "transformers")
    assert (stage.loss.hint.weight, stage.loss.replay.weight, stage.sft.enabled, stage.optimizer.updates) == (0.0, 0.0, False, 1)
    assert stage.optimizer.learning_rate == 1e-2
    with pytest.raises(ConfigError, match=r"pretrain\.enabled is false: this run has no pre-training"):
        PRETRAIN.run_of(load_config(run_file))
    with pytest.raises(ConfigError, match="run `composer pretrain` with this run file first"):
        started_from(load_config(run_file, words), BEFORE_RL)


def test_a_source_that_is_not_there_is_named(run_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"pretrain\.sources"):
        load_config(run_file, ["--pretrain.enabled=true", '--pretrain.sources=["gone"]'])
    with pytest.raises(ConfigError, match="no text to learn from"):
        load_config(run_file, ["--pretrain.enabled=true"])
