"""`composer train` under torchrun and accelerate's launcher: two processes train what one trains, and go on after a kill."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import tomli_w
import torch
from world import COMPOSER, World, finish

from composer_replication.api.training import train
from composer_replication.config import ModelConfig, load_config
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import RunDir, deterministic
from composer_replication.trainer.learning.launcher import check_launcher
from composer_replication.types.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from wire_servers import Backend, WireServer

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
ACCELERATE = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    *("--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no", "--no_python"),
]
"""`--multi_gpu` is how it starts several processes on one machine; what they compute on is the run file's choice."""
ADAPTERS = ["--model.lora.rank", "4"]
CHANNELS = ["--loss.replay.weight", "0", "--loss.hint.weight", "0.5", "--seed", "1"]


def launched(*words: str, cwd: Path, launcher: Sequence[str] = TORCHRUN) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*launcher, *COMPOSER, *words]
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def children(pid: int) -> list[int]:
    """The processes that torchrun has started: it gives each a session of its own."""
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def both(*words: str, cwd: Path, launcher: Sequence[str] = TORCHRUN) -> str:
    process = launched(*words, cwd=cwd, launcher=launcher)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    last = latest_checkpoint(run.ckpt_path / "main")
    assert last is not None
    return load_policy(ModelConfig(path=str(last), device="cpu"))[0].state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "launcher"),
    [([], TORCHRUN), ([*ADAPTERS, "--model.precision", "mixed"], TORCHRUN), ([], ACCELERATE)],
    ids=["whole", "adapters", "by accelerate"],
)
def test_two_processes_take_the_step_of_one(run_file: Path, words: list[str], launcher: list[str]) -> None:
    words = [*words, *CHANNELS, "--steps", "2", "--optimizer.micro_batch_tokens", "640"]
    finish("train", str(run_file), *words, "--name", "one", cwd=run_file.parent)
    said = both("train", str(run_file), *words, "--name", "two", cwd=run_file.parent, launcher=launcher)
    assert said.count("2 processes share each update") == 1
    one, two = (RunDir(run_file.parent / "runs" / name) for name in ("one", "two"))
    first = [{m.step: m.values for m in run.read_metrics()}[1] for run in (one, two)]
    assert first[0]["optimizer/grad_norm"] > 0
    for name in ("loss/total", "optimizer/grad_norm", "hint/loss", "optimizer/tokens", "reward/mean"):
        assert first[1][name] == pytest.approx(first[0][name], rel=1e-4, abs=1e-7), name
    tolerance = 1e-4 if "--model.precision" not in words else 2e-2  # the last places of bfloat16 depend on how a batch is cut
    for (name, a), b in zip(weights(one).items(), weights(two).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.slow
@pytest.mark.long
def test_two_processes_killed_and_resumed_end_the_same(run_file: Path) -> None:
    """First the one that follows, after which the launcher ends the other; then all, as a machine that loses power kills them."""
    words = ["train", str(run_file), *CHANNELS, "--optimizer.micro_batch_tokens", "640"]
    both(*words, "--name", "whole", cwd=run_file.parent)
    runs = run_file.parent / "runs"
    for step, killed in ((1, "the follower"), (2, "all")):
        process = launched(*words, "--name", "killed", "--resume", cwd=run_file.parent)
        while not list((runs / "killed").glob(f"ckpt/main/step_{step:05d}/MANIFEST.sha256")):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        followers = [pid for pid in children(process.pid) if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()]
        assert len(followers) == 1
        for pid in (*children(process.pid), process.pid) if killed == "all" else followers:
            with contextlib.suppress(ProcessLookupError):  # torchrun may have ended it meanwhile
                os.kill(pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode != 0
    both(*words, "--name", "killed", "--resume", cwd=run_file.parent)
    whole, again = (RunDir(runs / name) for name in ("whole", "killed"))
    assert max(m.values.get("optimizer/grad_norm", 0.0) for m in whole.read_metrics()) > 0, "something was learnt"
    assert [(m.step, deterministic(m.values)) for m in whole.read_metrics()] == [
        (m.step, deterministic(m.values)) for m in again.read_metrics()
    ]
    assert all(torch.equal(a, b) for a, b in zip(weights(whole).values(), weights(again).values(), strict=True))


@pytest.mark.slow
def test_arms_are_trained_one_after_the_other(run_file: Path) -> None:
    data = tomllib.loads(run_file.read_text())
    run_file.write_text(
        tomli_w.dumps(data | {"arms": {"one": {"loss.hint.weight": 0.0}, "other": {"optimizer.learning_rate": 1e-4}}})
    )
    both("train", str(run_file), "--steps", "1", "--loss.replay.weight", "0", cwd=run_file.parent)
    run = RunDir(run_file.parent / "runs" / "run")
    assert {(m.arm, m.step) for m in run.read_metrics()} == {(arm, step) for arm in ("one", "other") for step in (0, 1)}
    assert all(latest_checkpoint(run.ckpt_path / arm) for arm in ("one", "other"))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        [],
        pytest.param(["--model.precision", "mixed"], marks=pytest.mark.nightly),
        ["--model.precision", "bfloat16"],
        ["--model.lora.rank", "4", "--model.precision", "mixed"],
    ],
    ids=["float32", "mixed", "bfloat16", "adapters"],
)
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft, in the server's thread
def test_shared_out_weights_train_over_a_server_and_are_saved_whole(world: World, run_file: Path, words: list[str]) -> None:
    data = tomllib.loads(run_file.read_text())
    data["loss"] = {"rlvr": {"importance": "icepop"}}
    data["rollout"] |= {"engine": "vllm"}
    policy, tokenizer = load_policy(ModelConfig(path=str(world.policy), device="cpu"))
    with WireServer("vllm", Backend(policy, tokenizer)) as server:
        data["rollout"]["server_url"] = server.url
        run_file.write_text(tomli_w.dumps(data))
        words = ["train", str(run_file), *words, *CHANNELS, "--steps", "2"]
        finish(*words, "--name", "one", cwd=run_file.parent)
        both(*words, "--substrate.shard", "true", "--name", "two", cwd=run_file.parent)
        both(*words, "--substrate.shard", "true", "--name", "two", "--resume", cwd=run_file.parent)
    one, two = (RunDir(run_file.parent / "runs" / name) for name in ("one", "two"))
    (first,) = (m.values["optimizer/grad_norm"] for m in RunDir(run_file.parent / "runs" / "one").read_metrics() if m.step == 1)
    assert first > 0
    norms = [[m.values.get("optimizer/grad_norm") for m in run.read_metrics() if m.step == 1] for run in (one, two)]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4 if "--model.precision" not in words else 3e-2)
    for (name, a), b in zip(weights(one).items(), weights(two).values(), strict=True):
        assert a.shape == b.shape, name
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2, msg=name)


@pytest.mark.slow
def test_memory_and_time_are_planned_by_all_processes(run_file: Path) -> None:
    said = both("train", str(run_file), *CHANNELS, "--usd_per_hour", "2", "--dry-run", cwd=run_file.parent)
    assert said.count("memory of arm main on cpu, for each of 2 processes") == 1
    assert said.count("at most during an update") == 1
    assert said.count("trial of arm main") == 1
    assert re.search(r"US dollars for the machine, this arm +\d", said)


@pytest.mark.slow
def test_memory_of_shared_out_weights_is_planned_by_all_processes(run_file: Path) -> None:
    """On a server that somebody else has started no rollout is made."""
    served = ["--rollout.engine", "vllm", "--rollout.server_url", "http://127.0.0.1:1", "--loss.rlvr.importance", "tis"]
    said = both("train", str(run_file), *served, "--substrate.shard", "true", "--dry-run", cwd=run_file.parent)
    assert said.count("memory of arm main on cpu, for each of 2 processes") == 1
    assert "no rollout was made: the server may hold the weights of another run" in said
    assert "trial of arm main" not in said


def test_what_starts_its_own_processes_is_not_started_by_several(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"a launcher has started 2 processes, and substrate.type = ray starts its own"):
        train(run_file, overrides=["--substrate.type", "ray"])


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("ACCELERATE_USE_FSDP", "true", "substrate.shard"),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "micro_batch_tokens"),
        ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "model.compile"),
        ("ACCELERATE_USE_FSDP", "false", None),
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1", None),
        ("ACCELERATE_DYNAMO_BACKEND", "NO", None),
    ],
)
def test_a_launcher_decides_nothing_of_the_run(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, fix: str | None
) -> None:
    """Accelerate would divide the loss by the steps of accumulation, or wrap the policy by FSDP, and say nothing."""
    monkeypatch.setenv(name, value)
    config = load_config(run_file)
    if fix is None:
        check_launcher(config)
        return
    with pytest.raises(ConfigError, match=f"the launcher sets {name}={value}") as refused:
        check_launcher(config)
    assert fix in (refused.value.fix or "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "every token would gather all weights"),
        (["--rollout.engine", "vllm", "--rollout.server_url", "http://h:1", "--optimizer.offload", "true"], "copies in memory"),
        (["--rollout.engine", "vllm", "--rollout.server_url", "http://h:1", "--optimizer.moments", "8bit"], "cannot be saved"),
        (
            [
                *("--rollout.engine", "vllm", "--rollout.server_url", "http://h:1"),
                *("--model.lora.rank", "2", "--loss.hint.self_teacher", "ema"),
            ],
            "the averages are whole adapters",
        ),
    ],
    ids=str,
)
def test_what_shares_cannot_do_is_refused(run_file: Path, words: list[str], message: str) -> None:
    importance = ["--loss.rlvr.importance", "tis"]
    with pytest.raises(ConfigError, match=message):
        load_config(run_file, ["--substrate.shard", "true", *importance, *words])
