"""The run file of examples/stages, shrunk, through every stage, each killed once with `kill -9` and resumed: it ends as one left
alone, and its model cards tell of it."""

from __future__ import annotations

import json
import re
import shutil
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_pretrain import words as pretrain_words  # noqa: F401  (a fixture)
from world import World, composer, finish

from composer_replication.config import RunConfig, load_config
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.loss.forward.models import load_to_sample
from composer_replication.observe import RunDir
from composer_replication.observe.alarms import run_alarms
from composer_replication.observe.verdict import run_verdicts
from composer_replication.trainer.journal import WARNING

EXAMPLE = Path(__file__).parents[2] / "examples" / "stages" / "run.toml"
SFT = ["--sft.steps=4", "--sft.batch=3", "--sft.samples=2", "--sft.learning_rate=1e-2"]
ROOM = ["--rollout.context_tokens=1024", "--rollout.trajectory_tokens=512", "--rollout.turn_tokens=256", "--rollout.max_turns=4"]
RL = ["--steps=3", "--rollout.groups=2", "--rollout.group_size=3", "--optimizer.learning_rate=1e-3"]
OFTEN = ["--checkpoint_every=1", "--eval.every=2", "--eval.samples=2", "--threads=1", "--optimizer.micro_batch_tokens=2560"]
LEARNT = {
    "pretrain": r"text of `.*/text`\.\n- .* are held out",
    "sft": r"\d+ demonstrations \(",
    "": "Fine-tuned on demonstrations",
}
"""What the data of a stage's model card say, as a pattern."""


@pytest.fixture
def example(world: World, tmp_path: Path) -> tuple[Path, list[str]]:
    """A copy of the example, and options that shrink it."""
    shutil.copyfile(EXAMPLE, tmp_path / "run.toml")
    here = [f"--model.path={world.policy}", "--model.device=cpu", f"--tasks.train={world.tasks}"]
    apart = [f"--tasks.held_out={world.held_out}", "--tasks.held_out_share=0"]
    return tmp_path / "run.toml", [*here, *apart, *SFT, *ROOM, *RL, *OFTEN]


def test_the_example_has_every_stage_and_says_what_it_sets(tmp_path: Path) -> None:
    """It is one run, and each of its comments is made of sentences."""
    shutil.copyfile(EXAMPLE, tmp_path / "run.toml")
    for folder in ("tasks", "code"):
        (tmp_path / folder).mkdir()
    config = load_config(tmp_path / "run.toml")
    assert (config.pretrain.enabled, config.sft.enabled) == (True, True)
    assert config.pretrain.sources == (str(tmp_path / "code"),)
    assert config.tasks.held_out_share > 0
    text = EXAMPLE.read_text("utf-8")
    commands = re.findall(r"^#   composer (\w+)", text, flags=re.M)
    assert commands == ["tasks", "pretrain", "sft", "eval", "train", "eval"]
    remarks = re.findall(r"^[^#\n]+ # (.+)$", text, flags=re.M)
    assert len(remarks) > 10
    assert [remark for remark in remarks if not remark.endswith((".", ","))] == []


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
    common = [str(run_file), *words, "--name", name]
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


def check_card(run: RunDir, learnt: str) -> None:
    """The card of the last checkpoint tells the data, the results with the verdict, the alarms and the settings of its run."""
    last = latest_checkpoint(run.path / "ckpt" / "main")
    assert last is not None
    card = (last / "README.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", card, flags=re.M | re.S))
    assert list(sections) == ["Data", "Results", "Alarms", "Settings"]
    assert re.search(learnt, sections["Data"]), sections["Data"]

    (verdict,) = run_verdicts(run)
    assert verdict.sentence() in sections["Results"]
    columns = {"eval/pass_at_1": "pass@1", "pretrain/nll": "nats per token"}
    measured = [(line.step, name, line.values[name]) for line in run.read_metrics() for name in columns if name in line.values]
    assert len(measured) >= 2
    for step, name, value in measured:
        assert columns[name] in sections["Results"]
        assert f"| {step} | {value:.4g} |" in sections["Results"]

    alarms = [alarm.sentence() for alarm in run_alarms(run)] or ["No rollout has raised an alarm."]
    alarms += [event["message"] for event in run.read_events() if event["kind"] == WARNING]
    assert [alarm for alarm in alarms if alarm not in sections["Alarms"]] == []

    settings = RunConfig.model_validate(tomllib.loads(sections["Settings"].removeprefix("```toml\n").rpartition("```")[0]))
    assert settings == RunConfig.model_validate(tomllib.loads((run.path / "config.toml").read_text()))


@pytest.mark.slow
@pytest.mark.long
def test_every_stage_killed_and_resumed_ends_the_same(example: tuple[Path, list[str]], pretrain_words: list[str]) -> None:  # noqa: F811
    run_file, words = example
    words = [*words, *(word for word in pretrain_words if not word.startswith("--pretrain.enabled"))]
    whole, cut = (chain(run_file, words, name, kill=kill) for name, kill in (("whole", False), ("cut", True)))
    for stage, learnt in LEARNT.items():
        one, other = weights(whole / stage), weights(cut / stage)
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items()), stage
        check_card(RunDir(cut / stage), learnt)
    assert results(whole) == results(cut)
    assert {row["policy"] for row in results(cut)} == {"start", "pretrain", "sft", "main"}
