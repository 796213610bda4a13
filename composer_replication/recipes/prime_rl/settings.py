"""How the processes of a PRIME-RL run find our run file: by its path in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from composer_replication.config import RunConfig, load_config
from composer_replication.types.errors import ConfigError

RUN_FILE = "COMPOSER_PRIME_RL_RUN"
"""Environment variable: path of the run file of one arm (`config.write_configs` writes it)."""
FROZEN_URL = "COMPOSER_PRIME_RL_FROZEN_URL"
"""Environment variable: an inference server of PRIME-RL (ending in /v1) that serves the starting policy and is never updated."""


def read_run_file(environment: Mapping[str, str] | None = None) -> tuple[RunConfig, Path]:
    """Return the run of this process and the folder of its run file. Raises ConfigError when none is named or it is invalid."""
    named = (os.environ if environment is None else environment).get(RUN_FILE)
    if not named:
        raise ConfigError(
            f"the environment variable {RUN_FILE} is not set, so the algorithm has no options",
            fix="start from the rl.toml that write_configs wrote: it sets it",
        )
    path = Path(named)
    return load_config(path), path.absolute().parent


def needs_frozen(config: RunConfig) -> bool:
    """Return whether the starting policy is read all through the run, so that something has to serve it."""
    loss = config.loss
    return loss.rlvr.kl_beta > 0 or (loss.hint.weight > 0 and loss.hint.self_teacher == "frozen")
