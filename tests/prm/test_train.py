"""Training in a folder: what it learns, leaves behind, refuses, and survives."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from prm_world import RENDERER, TOKENIZER, corpus, model
from rich.console import Console

from composer_replication.observe import Terminal
from composer_replication.prm import PrmOptions, encode, load_prm, train_prm
from composer_replication.prm.train import PrmLearner
from composer_replication.types.errors import CheckpointError, ConfigError, ModelError

QUICK = PrmOptions(epochs=2, batch_size=4, learning_rate=1e-2, save_every=3, held_out=0.25)


def examples(*, flip=False, **sizes):
    """With `flip` what was good is bad."""
    found, labels = corpus(**sizes)
    known = {name: {i: 1.0 - v if flip else v for i, v in steps.items()} for name, steps in labels.items()}
    return [e for t in found for e in encode(t, RENDERER, known[t.trajectory_id])]


def train(out, *, options=QUICK, resume=False, network=None, told=None, **sizes):
    terminal = Terminal(Console(file=told or io.StringIO(), width=200))
    return train_prm(network or model(), TOKENIZER, examples(**sizes), out, options, resume=resume, terminal=terminal)


def test_it_learns_what_a_step_is_worth_on_tasks_it_has_not_seen(tmp_path):
    summary = train(tmp_path, options=PrmOptions(epochs=12, batch_size=8, learning_rate=2e-2), tasks=20)
    assert summary["prm/held_out/auroc"] > 0.95
    assert summary["prm/held_out/auroc_low"] > 0.8
    held_out = [json.loads(line) for line in (tmp_path / "held_out.jsonl").read_text().splitlines()]
    assert {line["task_id"] for line in held_out} == set(summary["held_out_tasks"])
    assert len(held_out) == summary["held_out_steps"] == 2 * summary["held_out_traces"]
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == list(range(1, summary["optimizer_steps"] + 1))
    assert sum("prm/held_out/auroc" in line for line in metrics) == 12
    assert (tmp_path / "held_out.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    load_prm(str(tmp_path / "model"))


def test_splitting_a_batch_changes_no_gradient():
    batch = examples(tasks=4)
    steps = {}
    for tokens in (1, 200, 100_000):
        network = model()
        learner = PrmLearner(network, QUICK, steps=10, pad_id=0)
        learner._optimizer.zero_grad = lambda: None
        loss = learner.update(batch)
        steps[tokens] = (torch.tensor(loss), torch.cat([p.grad.flatten() for p in network.parameters()]))
    for tokens in (1, 200):
        torch.testing.assert_close(steps[tokens], steps[100_000], rtol=1e-4, atol=1e-6)


_KILLED = """
import os, signal, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from test_train import train
import composer_replication.prm.train as training
import composer_replication.loss.forward.model_checkpoint as checkpoint

where, count = {where!r}, [0]
room, name = {{"log": (training.files, "append_line"), "seal": (checkpoint, "_seal"), "finish": (training, "picture")}}[where]
real = getattr(room, name)

def dying(*args, **kwargs):
    result = real(*args, **kwargs)
    count[0] += 1
    if count[0] == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(room, name, dying)
train(Path({out!r}), resume=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("where", "at"), [("log", 2), ("log", 5), ("seal", 2), ("finish", 1)])
def test_killed_and_resumed_ends_as_if_left_alone(tmp_path, where, at):
    """SIGKILL after a logged step, in the middle of a checkpoint, before the last files."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = train(whole)
    code = _KILLED.format(here=str(Path(__file__).parent), where=where, at=at, out=str(killed))
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert not (killed / "summary.json").exists()
    assert train(killed, resume=True) == expected
    for name in ("metrics.jsonl", "held_out.jsonl", "held_out.svg", "summary.json", "model/model.safetensors"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_finished_run_is_not_trained_again(tmp_path):
    summary = train(tmp_path)
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert train(tmp_path, resume=True) == summary
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    with pytest.raises(ConfigError, match="already holds a run"):
        train(tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"options": dataclasses.replace(QUICK, epochs=3, seed=4)}, "with epochs 2, not 3, seed 0, not 4$"),
        ({"seed": 1}, "with other traces, other labels$"),
        ({"network": 1}, "with other model$"),
        ({"flip": True}, "with other labels$"),
    ],
)
def test_another_run_is_not_resumed_and_what_differs_is_named(tmp_path, changed, said):
    train(tmp_path)
    if "network" in changed:
        changed = {"network": model(seed=1)}
    with pytest.raises(ConfigError) as told:
        train(tmp_path, resume=True, **changed)
    assert re.search(said, told.value.message)


def test_a_damaged_checkpoint_is_named(tmp_path):
    train(tmp_path)
    (weights,) = sorted((tmp_path / "ckpt").glob("*/model.safetensors"))[-1:]
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        train(tmp_path, resume=True)


def test_labels_of_one_kind_teach_nothing(tmp_path):
    found, _ = corpus(tasks=4)
    good = [e for t in found for e in encode(t, RENDERER, dict.fromkeys(range(2), 1.0))]
    with pytest.raises(ConfigError, match="is good"):
        train_prm(model(), TOKENIZER, good, tmp_path, QUICK)
    with pytest.raises(ConfigError, match="no step has a label"):
        train_prm(model(), TOKENIZER, [e for t in found for e in encode(t, RENDERER)], tmp_path / "none", QUICK)


def test_steps_beyond_the_window_are_left_out_and_counted(tmp_path):
    window = sorted(len(e.input_ids) for e in examples())[0] - 1
    told = io.StringIO()
    summary = train(tmp_path, network=model(max_position_embeddings=window), told=told)
    assert f"20 of 40 steps end beyond {window} tokens (the model's limit) and are left out" in told.getvalue()
    assert summary["steps_too_long"] == 20
    assert summary["steps"] + summary["held_out_steps"] == 20


def test_a_limit_that_no_labelled_step_is_within_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"every labelled step ends beyond 3 tokens \(max_tokens\)"):
        train(tmp_path, options=PrmOptions(max_tokens=3))


@pytest.mark.parametrize(("tasks", "warned"), [(28, True), (32, False)])
def test_few_held_out_steps_are_warned_of(tmp_path, tasks, warned):
    """A quarter of the tasks is held out, with four steps each."""
    told = io.StringIO()
    train(tmp_path, options=dataclasses.replace(QUICK, epochs=1, batch_size=64), told=told, tasks=tasks)
    assert ("warning: only 28 held-out steps are measured" in told.getvalue()) == warned


def test_a_gradient_that_is_not_finite_is_an_error(tmp_path):
    network = model()
    with torch.no_grad():
        network.score.weight[:] = float("inf")
    with pytest.raises(ModelError, match="step 1 is not finite"):
        train(tmp_path, network=network)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": -1.0},
        {"weight_decay": float("nan")},
        {"save_every": 0},
        {"held_out": 1.0},
    ],
)
def test_options_out_of_range_are_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PrmOptions(**wrong)
