"""`composer prm train` and `composer prm score` as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from in_process import composer_here
from prm_world import TOKENIZER, config, corpus
from transformers import AutoModelForCausalLM

from composer_replication.trainer.models import save_policy
from composer_replication.types import to_json


def composer(*words, cwd):
    code = "from composer_replication.cli import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"}
    return subprocess.run(
        [sys.executable, "-c", code, "prm", *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with traces, labels, a policy, and a model trained on them."""
    folder = tmp_path_factory.mktemp("prm")
    found, labels = corpus(tasks=12)
    (folder / "traces.jsonl").write_text("".join(json.dumps(to_json(t)) + "\n" for t in found))
    lines = [{"trajectory_id": n, "turn": i, "label": v} for n, steps in labels.items() for i, v in steps.items()]
    (folder / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_policy(AutoModelForCausalLM.from_config(config()), TOKENIZER, folder / "policy")
    run = composer(*TRAIN, "--labels", "labels.jsonl", "--epochs", "12", "--learning-rate", "2e-2", cwd=folder)
    assert run.returncode == 0, run.stderr
    return folder, run


TRAIN = ("train", "--traces", "traces.jsonl", "--model", "policy", "--out", "out")


def test_a_policy_becomes_a_reward_model(trained):
    folder, run = trained
    assert "auroc" in run.stdout
    assert json.loads((folder / "out" / "summary.json").read_text())["prm/held_out/auroc"] > 0.9


def prm(*words, cwd):
    return composer_here("prm", *words, cwd=cwd)


def test_traces_are_scored_turn_by_turn(trained):
    folder, _ = trained
    run = prm("score", "traces.jsonl", "--model", "out/model", "--out", "scores.jsonl", cwd=folder)
    assert run.returncode == 0, run.stderr
    rows = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    found, labels = corpus(tasks=12)
    assert [row["trajectory_id"] for row in rows] == [t.trajectory_id for t in found]
    for row in rows:
        assert [p >= 0.5 for p in row["turns"]] == [label == 1.0 for label in labels[row["trajectory_id"]].values()]
        assert row["product"] == pytest.approx(row["turns"][0] * row["turns"][1])
        assert row["min"] == min(row["turns"])
    assert "of each of 12 tasks" in run.stderr
    printed = prm("score", "traces.jsonl", "--model", "out/model", "--max-tokens", "120", cwd=folder)
    cut = [json.loads(line) for line in printed.stdout.splitlines()]
    assert [row["turns"][0] for row in cut] == pytest.approx([row["turns"][0] for row in rows], abs=1e-5)
    assert all(row["turns"][1] is None and row["product"] is None and row["min"] is None for row in cut)


def test_resuming_what_is_finished_and_starting_over(trained):
    folder, _ = trained
    same = (*TRAIN, "--labels", "labels.jsonl", "--epochs", "12", "--learning-rate", "2e-2")
    again = prm(*same, "--resume", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert "finished already" in again.stdout
    over = prm(*same, cwd=folder)
    assert over.returncode == 2
    assert "already holds a run" in over.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("train", "--traces", "none.jsonl", "--model", "policy", "--out", "x"), 2, "none.jsonl"),
        ((*TRAIN[:-1], "x", "--labels", "none.jsonl"), 2, "none.jsonl"),
        ((*TRAIN[:-1], "x", "--held-out", "1.5"), 2, "held_out is 1.5"),
        ((*TRAIN[:-1], "x", "--learning-rate", "-1"), 2, "learning_rate"),
        (("train", "--traces", "traces.jsonl", "--model", "./none", "--out", "x"), 5, "no such folder"),
        (("score", "traces.jsonl", "--model", "policy"), 5, "no process reward model"),
        (("score", "labels.jsonl", "--model", "out/model"), 2, "line 1: no trajectory"),
    ],
)
def test_what_cannot_be_done_is_said(trained, words, code, said):
    folder, _ = trained
    run = prm(*words, cwd=folder)
    assert run.returncode == code, run.stderr
    assert said in run.stderr
    assert "Traceback" not in run.stderr
