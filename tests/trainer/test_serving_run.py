"""Runs that sample from a server: real samples and log-probs over the wire of vLLM and of SGLang."""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

import psutil
import pytest
import tomli_w
from world import World, composer, finish

from composer_replication.config import ModelConfig
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import RunDir, deterministic

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from wire_servers import Backend, WireServer


class Dying(Backend):
    """Breaks its connections once it has loaded weights `loads` times."""

    loads = -1

    def load(self, folder: str) -> None:
        super().load(folder)
        self.loads -= 1
        if self.loads == 0:
            self.faults.add("crash")


def served(run_file: Path, kind: str, url: str) -> str:
    data = tomllib.loads(run_file.read_text())
    data["rollout"] |= {"engine": kind, "server_url": url}
    data["loss"] = {"rlvr": {"importance": "icepop"}}
    run_file.write_text(tomli_w.dumps(data))
    return str(run_file)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vllm", pytest.param("sglang", marks=pytest.mark.nightly)])
@pytest.mark.long
def test_a_run_over_a_server_that_dies_and_comes_back_ends_as_one_that_was_left_alone(
    world: World, run_file: Path, kind: str
) -> None:
    policy, tokenizer = load_policy(ModelConfig(path=str(world.policy), device="cpu"))
    backend = Dying(policy, tokenizer)
    with WireServer(kind, backend) as server:
        words = ("train", served(run_file, kind, server.url))
        finish(*words, "--name", "whole", cwd=run_file.parent)
        labels = [body for path, body in backend.asked if path in ("/collective_rpc", "/update_weights_from_disk")]
        assert len(labels) == 5, "before the first rollout, and after each step where something is sampled"

        backend.loads = 3
        process = composer(*words, "--name", "killed", cwd=run_file.parent)
        said, _ = process.communicate()
        assert process.returncode == 5, said
        assert "broke before the answer was whole" in said.replace("\n", " ")
        backend.faults.clear()
        backend.label = "default"
        finish(*words, "--name", "killed", "--resume", cwd=run_file.parent)

    whole, killed = (RunDir(run_file.parent / "runs" / name) for name in ("whole", "killed"))
    metrics = [[(m.step, deterministic(m.values)) for m in run.read_metrics()] for run in (whole, killed)]
    assert metrics[0] == metrics[1]
    means = [values["rlvr/importance/mean"] for _, values in metrics[0] if "rlvr/importance/mean" in values]
    assert means
    assert means == pytest.approx([1.0] * len(means), abs=1e-4)
    for step in range(1, 5):
        for run in (whole, killed):
            assert {t.policy_version for t in run.read_trajectories("main", step)} == {step - 1}


@pytest.mark.slow
@pytest.mark.long
def test_weights_that_go_through_a_store_train_as_those_in_a_folder_do(world: World, run_file: Path) -> None:
    policy, tokenizer = load_policy(ModelConfig(path=str(world.policy), device="cpu"))
    store, there = run_file.parent / "store", run_file.parent / "there"
    with WireServer("vllm", Backend(policy, tokenizer)) as server:
        words = ("train", served(run_file, "vllm", server.url))
        finish(*words, "--name", "folder", cwd=run_file.parent)
        follower = composer("weights", "follow", str(store), "--run", "patches", "--into", str(there), cwd=run_file.parent)
        finish(*words, "--name", "patches", "--rollout.server_store", "store", cwd=run_file.parent)
        follower.terminate()
        said, _ = follower.communicate()
    runs = (RunDir(run_file.parent / "runs" / name) for name in ("folder", "patches"))
    metrics = [[(m.step, deterministic(m.values)) for m in run.read_metrics()] for run in runs]
    assert metrics[0] == metrics[1]
    versions = [line for line in said.splitlines() if line.startswith("version")]
    assert len(versions) == 5, said
    assert "1 shards whole and 0 patched" in versions[0]


@pytest.mark.slow
@pytest.mark.long
def test_a_run_that_starts_its_server_trains_as_over_one_that_was_started(
    world: World, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two arms has a server, which is gone when the arm is done."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "tools" / "wire_vllm"))
    policy, tokenizer = load_policy(ModelConfig(path=str(world.policy), device="cpu"))
    words = ("--arms.one.steps", "2", "--arms.two.steps", "2")
    with WireServer("vllm", Backend(policy, tokenizer)) as server:
        finish("train", served(run_file, "vllm", server.url), "--name", "over", *words, cwd=run_file.parent)
    data = tomllib.loads(run_file.read_text())
    del data["rollout"]["server_url"]
    data["model"]["path"] = str(shutil.copytree(world.policy, run_file.parent / "policy"))  # other tests' processes name that one
    run_file.write_text(tomli_w.dumps(data))
    said = finish("train", str(run_file), "--name", "own", *words, cwd=run_file.parent)
    over, own = (RunDir(run_file.parent / "runs" / name) for name in ("over", "own"))
    metrics = [[(m.arm, m.step, deterministic(m.values)) for m in run.read_metrics()] for run in (over, own)]
    assert metrics[0] == metrics[1]
    assert said.count("starting a vLLM server") == 2
    for arm in ("one", "two"):
        log = own.ckpt_path / arm / "serving" / "vllm.log"
        assert log.read_text().count("started with") == 1
    assert not [one for one in psutil.process_iter(["cmdline"]) if data["model"]["path"] in (one.info["cmdline"] or [])]


@pytest.mark.slow
def test_a_run_whose_server_cannot_be_started(run_file: Path) -> None:
    data = tomllib.loads(run_file.read_text())
    data["rollout"] |= {"engine": "vllm"}
    data["loss"] = {"rlvr": {"importance": "tis"}}
    run_file.write_text(tomli_w.dumps(data))
    for words in ((), ("--dry-run",)):
        process = composer("train", str(run_file), *words, cwd=run_file.parent)
        said, _ = process.communicate()
        assert process.returncode == 2, said
        assert "has no vLLM" in said
        assert "rollout.server_python" in said


@pytest.mark.slow
def test_a_server_that_lacks_something_is_said_before_the_run_starts(world: World, run_file: Path) -> None:
    policy, tokenizer = load_policy(ModelConfig(path=str(world.policy), device="cpu"))
    with WireServer("vllm", Backend(policy, tokenizer, ("no_loading",))) as server:
        process = composer("train", served(run_file, "vllm", server.url), cwd=run_file.parent)
        said, _ = process.communicate()
        assert process.returncode == 5, said
        assert "VLLM_SERVER_DEV_MODE=1" in said
