"""Checks that a launcher, torchrun or accelerate's, asks for nothing that the run file decides."""

from __future__ import annotations

import os
from collections.abc import Mapping

from composer_replication.config import RunConfig
from composer_replication.trainer.learning.followers import launched_processes
from composer_replication.types.errors import ConfigError

_DECIDED: Mapping[str, str] = {
    "ACCELERATE_USE_FSDP": "set substrate.shard = true",
    "ACCELERATE_USE_DEEPSPEED": "set substrate.shard = true",
    "ACCELERATE_USE_MEGATRON_LM": "set substrate.shard = true",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "set substrate.shard = true",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "set optimizer.micro_batch_tokens",
    "ACCELERATE_DYNAMO_BACKEND": "set model.compile = true",
}
"""Variables by which accelerate's launcher changes what an `Accelerator` does, and the field that decides it in a run."""
_NOTHING = ("", "0", "false", "no")
"""Values that ask for nothing."""


def check_launcher(config: RunConfig) -> None:
    """Check that a launcher asks for nothing that the run file decides.

    Raises:
        ConfigError: it does, or it has started several processes for a run that one process starts.
    """
    for name, fix in _DECIDED.items():
        value = os.environ.get(name, "")
        one_step = name == "ACCELERATE_GRADIENT_ACCUMULATION_STEPS" and value == "1"
        if value.lower() not in _NOTHING and not one_step:
            raise ConfigError(f"the launcher sets {name}={value}, which the run file decides", fix=f"{fix} instead")
    processes, substrate = launched_processes(), config.substrate.type
    if processes > 1 and substrate != "local":
        raise ConfigError(
            f"a launcher has started {processes} processes, and substrate.type = {substrate} starts its own",
            fix="run `composer train` without torchrun, or set substrate.type = local",
        )
    if processes > 1 and config.model.device.startswith("cuda:"):
        raise ConfigError(
            f"a launcher has started {processes} processes, and model.device = {config.model.device} is one device",
            fix="set model.device = cuda: each process takes its own",
        )
