"""Two processes by DDP: each has its own rows, hints and pairs; the gradient is that of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import one_gradient
import pytest
import torch
from one_gradient import relative_error


def on_two_processes(*words):
    script = Path(__file__).with_name("ddp_step.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run([*launch, str(script), *words], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("ga", [1, 2])
def test_two_processes_have_the_gradient_of_one(tmp_path, ga):
    on_two_processes(str(tmp_path), str(ga))
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    case = one_gradient.case()
    assert relative_error(found["gradient"], one_gradient.local_gradient(case)) < 1e-5
    assert found["logs"]["replay/pairs"] == len(case.pairs)
    assert found["logs"]["hint/tokens"] == sum(len(h.action_ids) for h in case.hinted)


def test_two_processes_have_one_clock(tmp_path):
    """TAID's follows the loss of all hints, not that of a process's own."""
    on_two_processes(str(tmp_path), "1", "taid")
    first, second = (torch.load(tmp_path / f"clock_{rank}.pt", weights_only=True) for rank in (0, 1))
    assert first["hint/loss"] != second["hint/loss"], "each has its own hints"
    assert first["clock"] == second["clock"]
