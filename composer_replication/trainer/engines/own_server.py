"""The server that a run starts for itself."""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import PreTrainedConfig

from composer_replication.config import RunConfig
from composer_replication.loss.forward.models import resolve_device, resolve_precision, window_of
from composer_replication.rollouts.serving import StartedVllm, VllmOptions, require_vllm
from composer_replication.types.errors import ConfigError

LOG = "vllm.log"
"""Name of the file that the server writes to."""


def check_server(config: RunConfig) -> None:
    """Check for what would keep the server of a run from starting.

    Raises:
        ConfigError: the policy is no whole model.
        MissingExtraError: there is no vLLM.
    """
    if (Path(config.model.path) / "adapter_config.json").is_file():
        raise ConfigError(
            f"model.path = {config.model.path} has LoRA adapters, and a server that a run starts needs a whole model",
            fix="write it with `composer weights merge`, and name its folder",
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
    device = resolve_device(model.device)
    shared = () if device.type == "cpu" else (device.index or 0,)
    return VllmOptions(
        model=model.path,
        dtype="float32" if resolve_precision(model) == "float32" else "bfloat16",
        window=min(rollout.context_tokens, window_of(architecture)),
        python=_python(config),
        lora_rank=model.lora.rank,
        gpus=rollout.server_gpus or shared,
        sleeps=bool(shared) and not set(shared).isdisjoint(rollout.server_gpus or shared),
        more=rollout.server_options,
    )


def _python(config: RunConfig) -> Path:
    return Path(sys.executable) if config.rollout.server_python is None else config.rollout.server_python
