"""`kill -9` at random moments, then --resume: the same weights and the same metrics as a run that was left alone."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from teacher_server import Reply, TeacherServer
from world import World, composer, finish, name_teachers

from composer_replication.observe import RunDir, deterministic
from composer_replication.observe.files import read_lines

pytestmark = pytest.mark.slow  # every test trains, most of them in processes


def outcome(run: Path) -> tuple[bytes, list[tuple[str, int, dict[str, float]]], dict[str, list[tuple[object, ...]]]]:
    """Weights, metrics, and what was sampled by file."""
    weights = (run / "ckpt" / "main" / "step_00004" / "model.safetensors").read_bytes()
    lines = [(m.arm, m.step, deterministic(m.values)) for m in RunDir(run).read_metrics()]
    recorded = sorted(p for p in (run / "trajectories" / "main").iterdir() if ".hints" not in p.name and p.stem != "pairs")
    sampled = {p.name: [sample(line) for line in read_lines(p)] for p in recorded}
    assert {"traces.jsonl", "eval_00000.jsonl", "eval_00004.jsonl", "step_00004.jsonl"} <= sampled.keys()
    return weights, lines, sampled


def sample(trajectory: dict[str, Any]) -> tuple[object, ...]:
    """What does not depend on the machine."""
    return (
        trajectory["trajectory_id"],
        trajectory["policy_version"],
        [(t["action_ids"], t["logprobs"]) for t in trajectory["turns"]],
    )


@pytest.mark.parametrize("chosen", ["in turn", pytest.param("by pass rate", marks=pytest.mark.nightly)])
@pytest.mark.long
def test_killed_five_times_ends_the_same(run_file: Path, chosen: str) -> None:
    if chosen == "by pass rate":
        with run_file.open("a") as file:
            file.write("[curriculum]\nenabled = true\nlevels = 2\n")
    with TeacherServer(lambda _body, _number: Reply(calls=[("list_files", {})])) as server:
        name_teachers(run_file, server.base_url)
        kill_five_times(run_file)
    folder = run_file.parent / "runs"
    assert (folder / "whole" / "ckpt" / "main" / "pairs.jsonl").read_bytes()
    assert outcome(folder / "killed") == outcome(folder / "whole")


def kill_five_times(run_file: Path) -> None:
    """The same run twice: left alone as `whole`, killed and resumed as `killed`."""
    folder = run_file.parent
    began = time.monotonic()
    finish("train", str(run_file), "--name", "whole", cwd=folder)
    length = time.monotonic() - began
    rng = random.Random(0)
    kills = 0
    while kills < 5:
        process = composer("train", str(run_file), "--name", "killed", "--resume", cwd=folder)
        time.sleep(length * rng.uniform(0.2, 0.9))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        if process.returncode == 0:  # it got to its end: once more from the start
            shutil.rmtree(folder / "runs" / "killed")
    finish("train", str(run_file), "--name", "killed", "--resume", cwd=folder)
    assert kills == 5


def test_a_finished_run_resumes_to_itself_and_refuses_drift(run_file: Path) -> None:
    folder = run_file.parent
    finish("train", str(run_file), "--steps", "1", cwd=folder)
    before = RunDir(folder / "runs" / "run").read_metrics()
    assert {m.step for m in before} == {0, 1}
    finish("train", str(run_file), "--steps", "1", "--resume", cwd=folder)
    assert RunDir(folder / "runs" / "run").read_metrics() == before

    again = composer("train", str(run_file), "--steps", "1", cwd=folder)
    output, _ = again.communicate()
    assert again.returncode == 2
    assert "already holds a run" in output

    drifted = composer("train", str(run_file), "--steps", "1", "--resume", "--optimizer.learning_rate", "5e-4", cwd=folder)
    output, _ = drifted.communicate()
    assert drifted.returncode == 2
    assert "optimizer.learning_rate" in output
    assert "Traceback" not in output


def test_a_damaged_checkpoint_is_named(run_file: Path) -> None:
    folder = run_file.parent
    finish("train", str(run_file), "--steps", "1", cwd=folder)
    weights = folder / "runs" / "run" / "ckpt" / "main" / "step_00001" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    process = composer("train", str(run_file), "--steps", "1", "--resume", cwd=folder)
    output, _ = process.communicate()
    assert process.returncode == 7
    assert "model.safetensors" in output
    assert "Traceback" not in output


@pytest.mark.long
def test_pairs_belong_to_the_checkpoint_and_strangers_do_not(run_file: Path) -> None:
    """What is refused loses nothing."""
    folder = run_file.parent
    with TeacherServer(lambda _body, _number: Reply(calls=[("list_files", {})])) as server:
        name_teachers(run_file, server.base_url)
        finish("train", str(run_file), "--steps", "1", cwd=folder)
    run = RunDir(folder / "runs" / "run")
    (run.ckpt_path / "main" / "step_00001.bad").mkdir()
    finish("train", str(run_file), "--steps", "1", "--resume", cwd=folder)
    pairs = run.ckpt_path / "main" / "pairs.jsonl"
    kept = pairs.read_bytes()
    assert kept
    pairs.unlink()
    shutil.rmtree(run.ckpt_path / "main" / "step_00001")
    before = run.read_metrics()
    process = composer("train", str(run_file), "--steps", "1", "--resume", cwd=folder)
    output, _ = process.communicate()
    assert process.returncode == 7, output
    assert "pairs.jsonl: missing" in output
    assert run.read_metrics() == before
    pairs.write_bytes(kept)
    finish("train", str(run_file), "--steps", "1", "--resume", cwd=folder)


@pytest.mark.long
def test_changed_tasks_are_named(run_file: Path, world: World, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    shutil.copytree(world.tasks, tasks)
    words = ["train", str(run_file), "--steps", "1", "--tasks.train", str(tasks), "--rollout.groups", "1"]
    finish(*words, cwd=tmp_path)
    shutil.rmtree(sorted(tasks.iterdir())[0])
    process = composer(*words, "--resume", cwd=tmp_path)
    output, _ = process.communicate()
    assert process.returncode == 7
    assert "was made with other tasks" in output
    assert "Traceback" not in output
