"""`composer train` on substrate trl: its files and its report, the local loop's steps, `kill -9`, options and refusals."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
from world import composer, finish  # tests/trainer

from composer_replication.config import load_config
from composer_replication.loss.forward.model_checkpoint import read_checkpoint
from composer_replication.loss.forward.models import save_policy
from composer_replication.observe import RunDir, deterministic
from composer_replication.quickstart.language import project_path
from composer_replication.quickstart.policy import tiny_model, tiny_tokenizer
from composer_replication.quickstart.warm_start import imitate
from composer_replication.tasks.build import BuildOptions, build_tasks
from composer_replication.tokens import ChatRenderer

HANG_S = 600.0
NON_ZERO = (
    *("rlvr/loss", "hint/loss", "hint/turns", "hint/tokens", "hint/jsd/mean", "replay/loss", "replay/pairs"),
    *("loss/total", "optimizer/grad_norm"),
)
"""A channel that is on shows it in every step."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Five tasks, a policy that calls tools and solves nothing (every step has error turns), and a file of pairs."""
    root = tmp_path_factory.mktemp("world")
    made = build_tasks(
        str(project_path("harbour")), root / "built", BuildOptions(trivial=True, packages=("harbour/cargo.py",), max_tasks=5)
    )
    for part, names in (("train", made.tasks[:3]), ("held_out", made.tasks[3:])):
        for name in names:
            shutil.copytree(root / "built" / name, root / part / name)
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, 0, hidden=32, layers=2)
    imitate(model, ChatRenderer(tokenizer), steps=300, seed=0, batch_size=4)
    save_policy(model, tokenizer, root / "policy")
    state = [{"role": "user", "content": "How is cargo counted?"}]
    pairs = [
        {"state_id": f"s{i}", "state_messages": state, "chosen": f"In crates: {i}.", "rejected": "No.", "n_teachers_agreeing": 2}
        for i in range(6)
    ]
    (root / "pairs.jsonl").write_text("".join(json.dumps(p) + "\n" for p in pairs))
    return root


@pytest.fixture
def run_file(prepared, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
name = "run"
steps = 3
checkpoint_every = 1
threads = 1
[substrate]
type = "trl"
[model]
path = "{prepared}/policy"
device = "cpu"
[tasks]
train = "{prepared}/train"
held_out = "{prepared}/held_out"
[rollout]
groups = 2
group_size = 3
turn_tokens = 64
trajectory_tokens = 256
context_tokens = 640
max_turns = 4
[reward.effort]  # where no verdicts differ, advantages do
weight = 0.02
[loss.replay]
pairs = "{prepared}/pairs.jsonl"
pairs_per_step = 4
[loss.hint]
self_teacher = "ema"
[optimizer]
learning_rate = 1e-3
micro_batch_tokens = 1920
[eval]
every = 2
samples = 2
"""
    )
    return path


def outcome(run: Path, step: int = 3):
    lines = [(m.arm, m.step, deterministic(m.values)) for m in RunDir(run).read_metrics()]
    folder = run / "ckpt" / "main" / f"step_{step:05d}"
    sampled = {
        s: [(t.trajectory_id, [turn.action_ids for turn in t.turns]) for t in RunDir(run).read_trajectories("main", s)]
        for s in RunDir(run).steps("main")
    }
    return (folder / "model.safetensors").read_bytes(), lines, sampled


def test_a_run_and_its_files(run_file):
    finish("train", str(run_file), cwd=run_file.parent)
    run = RunDir(run_file.parent / "runs" / "run")
    lines = {m.step: m.values for m in run.read_metrics()}
    assert sorted(lines) == [0, 1, 2, 3]
    for step in (1, 2, 3):
        values = lines[step]
        for name in NON_ZERO:
            assert values[name] != 0, (step, name)
        loss = load_config(run_file).loss
        weighted = values["rlvr/loss"] + loss.hint.weight * values["hint/loss"] + loss.replay.weight * values["replay/loss"]
        assert values["loss/total"] == pytest.approx(weighted, rel=1e-4)
        assert len(run.read_trajectories("main", step)) == 6
        assert any(hint.dropped is None for hint in run.read_hints("main", step))
    assert [step for step, values in lines.items() if "eval/pass_at_1" in values] == [0, 2, 3]
    assert run.report_path.stat().st_size > 10_000
    checkpoints = sorted(p.name for p in (run.ckpt_path / "main").glob("*0*"))
    assert checkpoints == ["step_00002", "step_00003"]
    assert read_checkpoint(run.ckpt_path / "main" / "step_00003")["substrate"] == "trl"


def test_the_same_step_as_the_local_loop(run_file):
    """The same rollouts, and from them the same losses and the same gradient."""
    finish("train", str(run_file), "--name", "there", "--steps", "2", cwd=run_file.parent)
    finish("train", str(run_file), "--name", "here", "--steps", "2", "--substrate.type", "local", cwd=run_file.parent)
    there, here = (
        {m.step: m.values for m in RunDir(run_file.parent / "runs" / name).read_metrics()} for name in ("there", "here")
    )
    for step in (1, 2):
        assert all(here[step][name] != 0 for name in NON_ZERO), here[step]
        for name in ("reward/mean", "hint/turns", "hint/tokens", "rollout/tokens/mean", "optimizer/learning_rate"):
            assert there[step][name] == here[step][name], (step, name)
        for name in ("rlvr/loss", "hint/loss", "replay/loss", "loss/total", "optimizer/grad_norm"):
            assert there[step][name] == pytest.approx(here[step][name], rel=2e-3, abs=1e-6), (step, name)


def test_killed_and_resumed_it_ends_the_same(run_file):
    folder = run_file.parent
    finish("train", str(run_file), "--name", "whole", cwd=folder)
    killed = folder / "runs" / "killed"
    for reached in ("ckpt/main/step_00001", "trajectories/main/step_00003.jsonl"):  # between steps; within one
        process = composer("train", str(run_file), "--name", "killed", "--resume", cwd=folder)
        try:
            deadline = time.monotonic() + HANG_S
            while not (killed / reached).exists():
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        finally:
            process.kill()
            process.communicate()
        (killed / "ckpt" / "main" / "checkpoint-2").mkdir(exist_ok=True)  # what TRL may be killed over
    finish("train", str(run_file), "--name", "killed", "--resume", cwd=folder)
    assert outcome(killed) == outcome(folder / "runs" / "whole")
    assert not list((killed / "ckpt" / "main").glob("checkpoint-*"))


@pytest.mark.parametrize("precision", ["float32", "mixed"])
def test_adapters(run_file, precision):
    """What a checkpoint holds then is the adapter."""
    with run_file.open("a") as file:
        file.write('\n[substrate.options]\nloss_type = "sapo"\n')
    words = ["--steps", "2", "--model.lora.rank", "4", "--model.precision", precision]
    finish("train", str(run_file), *words, cwd=run_file.parent)
    run = RunDir(run_file.parent / "runs" / "run")
    last = {m.step: m.values for m in run.read_metrics()}[2]
    assert last["hint/loss"] != 0
    assert last["replay/loss"] != 0
    assert (run.ckpt_path / "main" / "step_00002" / "adapter_model.safetensors").is_file()
    finish("train", str(run_file), *words, "--resume", cwd=run_file.parent)


REFUSED = [
    (["--loss.rlvr.objective", "dppo"], "loss.rlvr.objective = dppo: TRL has no such surrogate"),
    (["--rollout.refills", "1"], "rollout.refills = 1: a step takes a fixed number of rollouts"),
    (["--optimizer.epochs", "2"], "optimizer.epochs = 2: a step of the run is an optimizer step of TRL's"),
    (["--loss.rlvr.entropy_bonus", "0.1"], "loss.rlvr.entropy_bonus = 0.1: TRL averages entropies over each micro-batch"),
    (["--substrate.options.max_steps", "9"], "substrate.options.max_steps is not free"),
    (["--substrate.options.bogus", "1"], "substrate.options.bogus is no field of GRPOConfig"),
    (["--substrate.options.bf16", "true"], "substrate.options.bf16 is not free"),
    (["--substrate.options.loss_type", "bogus"], "substrate.options.loss_type = 'bogus'"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_refusals_are_one_line(run_file, words, message):
    process = composer("train", str(run_file), *words, cwd=run_file.parent)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 2, output
    assert message in " ".join(output.split())
    assert "Traceback" not in output
    assert not list(run_file.parent.glob("runs/*/trajectories/*/*")), "before anything is sampled"
