"""A run on PRIME-RL: write its configuration, start its processes, and import what they measured."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from composer_replication.config import RunConfig, resolve_arm
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.prime_rl.config import check, write_configs
from composer_replication.recipes.prime_rl.import_metrics import PrimeRLMetrics
from composer_replication.sandbox.program import RunningProgram
from composer_replication.trainer.preflight import NO_SOURCE
from composer_replication.trainer.report import print_result, write_arms_report
from composer_replication.types.errors import BackendError, ConfigError, MissingExtraError
from composer_replication.types.secrets import without_secrets

__all__ = ["CHECKOUT", "check", "train"]

CHECKOUT = "COMPOSER_PRIME_RL_SRC"
"""Environment variable: a checkout of PRIME-RL, used rather than one that is installed."""
_SOURCES = ("src", "packages/prime-rl-configs/src")
_TAIL = 20
"""Lines of the log in the error of a run that failed."""


async def train(config: RunConfig, run_dir: RunDir, terminal: Terminal) -> list[SummaryRow]:
    """Train every arm, one after the other; each in `run_dir/prime_rl/ARM`, with PRIME-RL's own logs and checkpoints.

    An arm with checkpoints there continues from the last. Rollouts, evaluation and measures are PRIME-RL's; they become the run's
    metrics, trajectories and report when an arm is done (`import_metrics`).

    Raises:
        MissingExtraError: PRIME-RL cannot be imported.
        ConfigError: there are fewer than two GPUs, or as `write_configs`.
        BackendError: PRIME-RL gave up; its last words are in the message.
    """
    gpus, search = _gpus(), _search_path()
    folder = run_dir.path / "prime_rl"
    rows: list[SummaryRow] = []
    weights: dict[str, Path | None] = {}
    tomls = write_configs(config, folder, gpus=gpus, resume=True)
    for arm, toml in zip(config.arms, tomls, strict=True):
        outputs = toml.parent / "outputs"
        terminal.note(f"{arm}: PRIME-RL trains on {gpus} GPUs; its logs are in {outputs}")
        replay = resolve_arm(config, arm).loss.replay
        if replay.weight > 0 and replay.pairs is None:
            terminal.note(f"{arm}: replay is off, no pairs: {NO_SOURCE}")
        await _run(toml, search)
        imported = PrimeRLMetrics(resolve_arm(config, arm), arm, run_dir, terminal, outputs)
        imported.record()
        rows.append(imported.journal.summary())
        weights[arm] = _weights(outputs)
        write_arms_report(config, run_dir, rows)
    print_result(run_dir, terminal, rows, weights)
    return rows


def _weights(outputs: Path) -> Path | None:
    """Return the folder of the last weights that PRIME-RL kept; None when there is none."""
    found = {int(path.name.removeprefix("step_")): path for path in (outputs / "weights").glob("step_*")}
    return found[max(found)] if found else None


def _gpus() -> int:
    import torch

    found = torch.cuda.device_count()
    if found < 2:
        raise ConfigError(
            f"PRIME-RL needs two GPUs, one to train and one to sample, and torch finds {found}",
            fix="run it on a machine with GPUs, or choose substrate.type = local, trl, verl, monarch or ray",
        )
    return found


def _search_path() -> list[str]:
    """Return the folders to put before PYTHONPATH so that PRIME-RL is found."""
    checkout = os.environ.get(CHECKOUT)
    if checkout and (Path(checkout) / _SOURCES[0] / "prime_rl").is_dir():
        return [str(Path(checkout).absolute() / source) for source in _SOURCES]
    if find_spec("prime_rl") is not None:
        return []
    raise MissingExtraError(
        "PRIME-RL is neither installed nor in a checkout",
        fix=f"run this in PRIME-RL's environment, or set {CHECKOUT} to the folder of a checkout (docs/prime_rl.md)",
    )


async def _run(toml: Path, search: list[str]) -> None:
    inherited = os.environ.get("PYTHONPATH")
    environment = {"PYTHONPATH": os.pathsep.join([*search, *([inherited] if inherited else [])])}
    command = (sys.executable, "-m", "composer_replication.recipes.prime_rl.launcher", "rl", "@", str(toml))
    log = toml.parent / "launcher.log"
    with RunningProgram(command, log=log, environment=environment) as program:
        status = await program.wait()
    if status != 0:
        said = "\n".join(without_secrets(log.read_text(errors="replace")).splitlines()[-_TAIL:])
        raise BackendError(f"PRIME-RL ended with status {status}:\n{said}", fix=f"see {log} and the other logs in its folder")
