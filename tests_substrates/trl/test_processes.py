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


@pytest.mark.parametrize("ga", [1, 2])
def test_two_processes_have_the_gradient_of_one(tmp_path, ga):
    script = Path(__file__).with_name("ddp_step.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(
        [*launch, str(script), str(tmp_path), str(ga)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    case = one_gradient.case()
    assert relative_error(found["gradient"], one_gradient.local_gradient(case)) < 1e-5
    assert found["logs"]["replay/pairs"] == len(case.pairs)
    assert found["logs"]["hint/tokens"] == sum(len(h.action_ids) for h in case.hinted)
