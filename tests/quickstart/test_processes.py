"""The quickstart's own run file in two processes: its tasks, its teachers and all three channels, to the gradient of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from composer_replication.config import ModelConfig, to_toml
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe import RunDir, Terminal, deterministic
from composer_replication.quickstart.run import ARMS, prepare, quickstart_config
from composer_replication.quickstart.teachers import TEACHERS, served

COMPOSER = [sys.executable, "-c", "from composer_replication.cli import main; main()"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
STEPS = 2


@dataclass(frozen=True)
class Quickstart:
    """What the quickstart prepares, its run file with the arm of three channels, and where its runs lie."""

    run_file: Path
    runs: Path

    def start(self, name: str, *words: str, processes: int = 1) -> subprocess.Popen[bytes]:
        """Start `composer train`, under torchrun where there are several processes; what it says goes to a file."""
        launcher = TORCHRUN if processes > 1 else []
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb", "GLOO_SOCKET_IFNAME": "lo"}
        command = [*launcher, *COMPOSER, "train", str(self.run_file), "--name", name, *words]
        with (self.runs / f"{name}.log").open("ab") as said:
            return subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)

    def train(self, name: str, *words: str, processes: int = 1) -> RunDir:
        assert self.start(name, *words, processes=processes).wait() == 0, (self.runs / f"{name}.log").read_text()[-3000:]
        return RunDir(self.runs / name)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quickstart]:
    prepared = tmp_path_factory.mktemp("quickstart")
    prepare(prepared, Terminal(), seed=0, sandbox="auto")
    with served({name: prepared / "teachers" / name for name in TEACHERS}) as teachers:
        config = quickstart_config(prepared, prepared / "runs" / "run", teachers, seed=0, steps=STEPS, sandbox="auto")
        (prepared / "runs").mkdir()
        run_file = prepared / "run.toml"
        arms = {"three_channels": ARMS["three_channels"]}
        run_file.write_text(to_toml(config.model_copy(update={"arms": arms, "checkpoint_every": 1})))
        yield Quickstart(run_file, prepared / "runs")


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    last = latest_checkpoint(run.ckpt_path / "three_channels")
    assert last is not None
    return load_policy(ModelConfig(path=str(last), device="cpu"))[0].state_dict()


@pytest.mark.slow
@pytest.mark.nightly
def test_two_processes_train_it_to_the_gradient_of_one_and_resume(quickstart: Quickstart) -> None:
    one, two = quickstart.train("one"), quickstart.train("two", processes=2)
    first, shared = ({m.step: m.values for m in run.read_metrics()}[1] for run in (one, two))
    for channel in ("rlvr", "hint", "replay"):
        assert first[f"{channel}/gradient/norm"] > 0, f"{channel} learns in the first step"
    names = ("loss/total", "rlvr/loss", "hint/loss", "replay/loss", "optimizer/grad_norm", "optimizer/tokens", "reward/mean")
    for name in (*names, *(f"{channel}/gradient/norm" for channel in ("rlvr", "hint", "replay"))):
        assert shared[name] == pytest.approx(first[name], rel=1e-4, abs=1e-7), name
    for (name, a), b in zip(weights(one).items(), weights(two).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=name)

    killed = quickstart.start("killed", processes=2)
    while not list((quickstart.runs / "killed").glob("ckpt/three_channels/step_00001/MANIFEST.sha256")):
        assert killed.poll() is None, (quickstart.runs / "killed.log").read_text()[-3000:]
        time.sleep(0.05)
    launched = [
        int(child) for task in Path(f"/proc/{killed.pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    for pid in (killed.pid, *launched):
        os.kill(pid, signal.SIGKILL)
    assert killed.wait() != 0
    again = quickstart.train("killed", "--resume", processes=2)
    assert [(m.step, deterministic(m.values)) for m in again.read_metrics()] == [
        (m.step, deterministic(m.values)) for m in two.read_metrics()
    ]
    assert all(torch.equal(a, b) for a, b in zip(weights(two).values(), weights(again).values(), strict=True))
