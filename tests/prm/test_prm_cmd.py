"""`composer prm train` and `composer prm score` as a user runs them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import torch
from in_process import composer_here
from prm_world import TOKENIZER, config, corpus
from transformers import AutoModelForCausalLM

from composer_replication.loss.forward.models import save_policy
from composer_replication.types import Unscored, to_json


def composer(*words, cwd):
    code = "from composer_replication.cli import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"}
    return subprocess.run(
        [sys.executable, "-c", code, "prm", *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """A folder with traces, labels and a policy."""
    folder = tmp_path_factory.mktemp("prm")
    found, labels = corpus(tasks=12)
    (folder / "traces.jsonl").write_text("".join(json.dumps(to_json(t)) + "\n" for t in found))
    lines = [{"trajectory_id": n, "turn": i, "label": v} for n, steps in labels.items() for i, v in steps.items()]
    (folder / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_policy(AutoModelForCausalLM.from_config(config()), TOKENIZER, folder / "policy")
    return folder


@pytest.fixture(scope="module")
def trained(untrained):
    """The folder, in which a model has been trained by a process, and what that printed."""
    folder = untrained
    run = composer(*TRAIN, "--labels", "labels.jsonl", "--epochs", "12", "--learning-rate", "2e-2", cwd=folder)
    assert run.returncode == 0, run.stderr
    return folder, run


TRAIN = ("train", "--traces", "traces.jsonl", "--model", "policy", "--out", "out")


@pytest.mark.slow
def test_a_policy_becomes_a_reward_model(trained):
    folder, run = trained
    assert "auroc" in run.stdout
    assert run.stderr == ""
    assert json.loads((folder / "out" / "summary.json").read_text())["prm/held_out/auroc"] > 0.9


def prm(*words, cwd):
    return composer_here("prm", *words, cwd=cwd)


@pytest.mark.slow
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
    assert "24 of 48 steps end beyond 120 tokens (max_tokens) and are left out" in printed.stderr
    cut = [json.loads(line) for line in printed.stdout.splitlines()]
    assert [row["turns"][0] for row in cut] == pytest.approx([row["turns"][0] for row in rows], abs=1e-5)
    assert all(row["turns"][1] is None and row["product"] is None and row["min"] is None for row in cut)


@pytest.mark.slow
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
        ((*TRAIN[:-1], "x", "--labels", "empty.jsonl"), 2, "empty.jsonl labels no step"),
        (("train", "--traces", "unscored.jsonl", *TRAIN[3:-1], "x"), 2, "none of the 24 traces has a reward"),
        ((*TRAIN[:-1], "x", "--device", "gpu"), 2, "device is 'gpu'\n  fix: give device as auto, cpu, cuda or cuda:N"),
        (("score", "traces.jsonl", "--model", "policy", "--device", "cuda:x"), 2, "device is 'cuda:x'"),
        ((*TRAIN[:-1], "x", "--labels", "none.jsonl"), 2, "none.jsonl"),
        ((*TRAIN[:-1], "x", "--held-out", "1.5"), 2, "held_out is 1.5"),
        ((*TRAIN[:-1], "x", "--learning-rate", "-1"), 2, "learning_rate"),
        (("train", "--traces", "traces.jsonl", "--model", "./none", "--out", "x"), 5, "no such folder"),
        (("score", "traces.jsonl", "--model", "policy"), 5, "not a process reward model"),
        (("score", "labels.jsonl", "--model", "policy"), 2, "line 1: no trajectory"),
    ],
)
def test_what_cannot_be_done_is_said(untrained, words, code, said):
    folder = untrained
    (folder / "empty.jsonl").touch()
    unscored = [to_json(dataclasses.replace(t, reward=Unscored("nobody graded it"))) for t in corpus(tasks=12)[0]]
    (folder / "unscored.jsonl").write_text("".join(json.dumps(t) + "\n" for t in unscored))
    run = prm(*words, cwd=folder)
    assert run.returncode == code, run.stderr
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_traces_that_name_no_task_are_trained_on(untrained, tmp_path):
    folder = untrained
    found = [to_json(dataclasses.replace(t, task_id="")) for t in corpus(tasks=12)[0]]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(t) + "\n" for t in found))
    words = ("--labels", str(folder / "labels.jsonl"), "--model", str(folder / "policy"), "--epochs", "1")
    run = prm("train", "--traces", "traces.jsonl", *words, "--out", "out", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert len(json.loads((tmp_path / "out" / "summary.json").read_text())["held_out_tasks"]) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("train", "--model", "m", "--out", "out", "--traces", "none"), ("score", "none", "--model", "m")]
)
def test_a_file_that_is_not_there_is_told_before_torch_is_imported(tmp_path, words):
    code = """if True:
        import sys
        from composer_replication.cli import main
        try:
            main()
        except SystemExit as ended:
            print(ended.code, "torch" in sys.modules)"""
    run = subprocess.run([sys.executable, "-c", code, "prm", *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["2", "False"], run.stderr
