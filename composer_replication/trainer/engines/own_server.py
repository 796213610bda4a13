"""The server that a run starts for itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from composer_replication.config import RunConfig
from composer_replication.config.server_options import memory_share
from composer_replication.loss.forward.models import resolve_device, resolve_precision, window_of
from composer_replication.rollouts.serving import StartedVllm, VllmOptions, require_vllm, visible_gpus
from composer_replication.types.errors import ConfigError

SERVING, LOG = "serving", "vllm.log"
"""Folder below an arm's checkpoints with the policy's weights on their way to a server, and the file there that a started server
writes to."""


def check_server(config: RunConfig) -> None:
    """Check for what would keep the server of a run from starting.

    Raises:
        ConfigError: the policy is no whole model, or there is no GPU of a number in `rollout.server_gpus`.
        MissingExtraError: there is no vLLM.
    """
    if (Path(config.model.path) / "adapter_config.json").is_file():
        raise ConfigError(
            f"model.path = {config.model.path} has LoRA adapters, and a server that a run starts needs a whole model",
            fix="write it with `composer weights merge`, and name its folder",
        )
    if gpus := config.rollout.server_gpus:
        visible_gpus(gpus)
        count = torch.cuda.device_count()
        if torch.cuda.is_available() and max(gpus) >= count:  # without CUDA here, the server's environment may have it
            raise ConfigError(
                f"rollout.server_gpus names GPU {max(gpus)}, and torch finds {count}",
                fix="name others in rollout.server_gpus, counted from 0",
            )
    require_vllm(_python(config))


def start_server(config: RunConfig, architecture: PreTrainedConfig, folder: Path) -> StartedVllm:
    """Start the server that a run file asks for, and return when it serves.

    Args:
        folder: for its log.

    Raises:
        ConfigError, MissingExtraError: as `check_server`.
        ModelError: it does not start (`StartedVllm`).
    """
    check_server(config)
    return StartedVllm(server_options(config, architecture), folder / LOG, timeout_s=config.rollout.stall_s)


def server_options(config: RunConfig, architecture: PreTrainedConfig) -> VllmOptions:
    """Return how the server of a run is started. It holds the model that the run starts from: the policy's weights, or adapters,
    are loaded into it later."""
    rollout, model = config.rollout, config.model
    gpus, sleeps = _gpus(config)
    return VllmOptions(
        model=model.path,
        dtype="float32" if served_dtype(config) == torch.float32 else "bfloat16",
        window=min(rollout.context_tokens, window_of(architecture)),
        python=_python(config),
        lora_rank=model.lora.rank,
        gpus=gpus,
        sleeps=sleeps,
        says_experts=model.router_replay,
        more=rollout.server_options,
    )


def served_dtype(config: RunConfig) -> torch.dtype:
    """Return the type that the server of a run computes in: that in which the policy multiplies matrices."""
    return torch.float32 if resolve_precision(config.model) == "float32" else torch.bfloat16


def shared_memory(config: RunConfig) -> float:
    """Return the share of the policy's GPU that a server takes during rollouts; 0 where there is none, or it has other GPUs."""
    return memory_share(config.rollout.server_options) if config.rollout.starts_server and _gpus(config)[1] else 0.0


def _gpus(config: RunConfig) -> tuple[Sequence[int], bool]:
    """Return the numbers of the server's GPUs, and whether the policy is on one of them. Of the processes that a launcher has
    started on this machine each has a GPU of its own."""
    device = resolve_device(config.model.device)
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    policy = () if device.type == "cpu" else range(processes) if processes > 1 else (device.index or 0,)
    gpus = config.rollout.server_gpus or policy[:1]
    return gpus, not set(policy).isdisjoint(gpus)


def _python(config: RunConfig) -> Path:
    return Path(sys.executable) if config.rollout.server_python is None else config.rollout.server_python
