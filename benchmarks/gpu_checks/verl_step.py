"""A step of verl's engine with all three channels, beside the gradient of the composed loss."""

from __future__ import annotations

import math
import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from gpu_checks.found import Found, need, nox

_SUBSTRATES = Path(__file__).resolve().parents[2] / "tests_substrates"
_MOST = {"cpu": 2e-5, "cuda": 1e-3}
"""Of the relative error of a gradient in float32, on which the two sides are on different devices with CUDA."""


def check(device: torch.device, folder: Path) -> Found:
    """Take one step on this device in a process group of one rank."""
    need("verl", nox("verl"))
    sys.path[:0] = [str(_SUBSTRATES / "verl"), str(_SUBSTRATES / "shared")]
    if device.type == "cpu":
        os.environ["VERL_PLATFORM"] = "cpu"
    import one_gradient

    from composer_replication.config import ModelConfig, RunConfig, TasksConfig
    from composer_replication.recipes.verl.plan import PLAN, ArmPlan

    case = one_gradient.case()
    policy = case.save(folder / "policy")
    config = RunConfig(model=ModelConfig(path=str(policy)), tasks=TasksConfig(train=folder), loss=one_gradient.LOSS)
    plan = ArmPlan("main", config, 512, folder / "arm")
    plan.write()
    os.environ[PLAN] = str(plan.path)  # before verl is imported: it loads our plugin then
    import engines

    _alone(device)
    try:
        gradient, metrics = engines.step(engines.engine(policy), engines.batch_of(case, 2))
    finally:
        dist.destroy_process_group()
    found = Found()
    on_cpu = {name: value.cpu() for name, value in gradient.items()}
    error = one_gradient.relative_error(on_cpu, one_gradient.local_gradient(case))
    found.at_most("gradient", error, _MOST[device.type])
    found.holds("it ran on this device", all(value.device.type == device.type for value in gradient.values()))
    for channel in ("rlvr", "hint", "replay"):
        found.holds(f"{channel} is on", metrics[f"{channel}/loss"] != 0.0)
    found.holds("the step is finite", math.isfinite(metrics["loss/total"]))
    return found


def _alone(device: torch.device) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
