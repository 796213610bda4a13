"""How a run starts its server: on which GPUs, and what keeps it from doing so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config

from composer_replication.config import RunConfig
from composer_replication.trainer.engines import own_server
from composer_replication.trainer.engines.own_server import check_server, server_options, shared_memory
from composer_replication.trainer.open_run import check_run_dir, open_run
from composer_replication.types.errors import ConfigError

GPUS = 4


def run(**rollout: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": "policy", "precision": "mixed"},
            "rollout": {"engine": "vllm", "server_python": sys.executable, **rollout},
            "loss": {"rlvr": {"importance": "tis"}},
        }
    )


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let the policy be on the first of some GPUs."""
    monkeypatch.setattr(own_server, "resolve_device", lambda _: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: GPUS)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "tools" / "wire_vllm"))
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("processes", "given", "gpus", "sleeps"),
    [
        (1, (), (0,), True),
        (1, (1,), (1,), False),
        (1, (0, 1), (0, 1), True),
        (2, (), (0,), True),
        (2, (1, 2), (1, 2), True),
        (2, (2, 3), (2, 3), False),
    ],
)
def test_a_server_sleeps_that_shares_the_gpu_of_any_process(
    with_gpus: pytest.MonkeyPatch, processes: int, given: tuple[int, ...], gpus: tuple[int, ...], sleeps: bool
) -> None:
    if processes > 1:
        with_gpus.setenv("LOCAL_WORLD_SIZE", str(processes))
    options = server_options(run(server_gpus=given), Qwen3Config())
    assert (tuple(options.gpus), options.sleeps) == (gpus, sleeps)
    assert shared_memory(run(server_gpus=given)) == (0.5 if sleeps else 0.0)
    given_more = run(server_gpus=given, server_options=("--gpu_memory_utilization=0.6", "--gpu-memory-utilization", "0.7"))
    assert shared_memory(given_more) == (0.7 if sleeps else 0.0), "the last one counts"
    assert shared_memory(RunConfig.model_validate({"model": {"path": "policy"}})) == 0.0


def test_gpus_that_there_are_not_are_named_before_anything_starts(with_gpus: pytest.MonkeyPatch) -> None:
    check_server(run(server_gpus=(0, GPUS - 1)))
    with pytest.raises(ConfigError, match=r"rollout\.server_gpus names GPU 4, and torch finds 4"):
        check_server(run(server_gpus=(1, GPUS)))
    with_gpus.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES= shows 0"):
        check_server(run(server_gpus=(0,)))


def test_the_server_of_a_resumed_run_may_be_another(tmp_path: Path) -> None:
    """A run that stopped because its server had too little memory has to go on with more."""
    before = run(server_gpus=(), server_options=("--gpu-memory-utilization", "0.4"))
    after = run(server_gpus=(1,), server_options=(), server_python="/other/python")
    with open_run(placed(before, tmp_path), resume=False) as run_dir:
        run_dir.log_metrics("main", 0, {"eval/pass": 0.0})
    check_run_dir(placed(after, tmp_path), resume=True)
    with pytest.raises(ConfigError, match="temperature"):
        check_run_dir(placed(run(temperature=0.5), tmp_path), resume=True)


def placed(config: RunConfig, out: Path) -> RunConfig:
    return config.model_copy(update={"out": out})
