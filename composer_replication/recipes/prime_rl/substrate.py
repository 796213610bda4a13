"""A run on PRIME-RL: its configuration is written, its processes are started, and what they measured is kept with the run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

from composer_replication.config import RunConfig
from composer_replication.errors import BackendError, ConfigError, MissingExtraError
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.prime_rl.config import check, write_configs

__all__ = ["CHECKOUT", "check", "measured", "train"]

CHECKOUT = "COMPOSER_PRIME_RL_SRC"
"""Environment variable: a checkout of PRIME-RL, used rather than one that is installed."""
_SOURCES = ("src", "packages/prime-rl-configs/src")
_TAIL = 20
"""Lines of the log in the error of a run that failed."""


async def train(config: RunConfig, run_dir: RunDir, terminal: Terminal, *, start_label: str = "start") -> list[SummaryRow]:
    """Train every arm, one after the other; each in `run_dir/prime_rl/ARM`, with PRIME-RL's own logs and checkpoints.

    An arm with checkpoints there goes on from the last. Evaluation and metrics are PRIME-RL's, copied into the run's metrics
    when an arm is done.

    Raises:
        MissingExtraError: PRIME-RL cannot be imported.
        ConfigError: there are fewer than two GPUs, or as `write_configs`.
        BackendError: PRIME-RL gave up; its last words are in the message.
    """
    del start_label  # the start is evaluated by PRIME-RL, as its step 0
    gpus, search = _gpus(), _search_path()
    folder = run_dir.path / "prime_rl"
    rows = []
    tomls = write_configs(config, folder, gpus=gpus, resume=True)
    for arm, toml in zip(config.arms, tomls, strict=True):
        terminal.note(f"{arm}: PRIME-RL trains on {gpus} GPUs; its logs are in {toml.parent / 'outputs'}")
        await _run(toml, search)
        steps = measured(toml.parent / "outputs")
        run_dir.truncate_after(arm, -1)  # an arm that was done before is measured again as a whole
        for step, metrics in sorted(steps.items()):
            run_dir.log_metrics(arm, step, metrics)
        rows.append(_summary(arm, config, steps))
    return rows


def measured(outputs: Path) -> dict[int, dict[str, float]]:
    """What trainer and orchestrator wrote into their `metrics.jsonl`, by step; numbers only."""
    steps: dict[int, dict[str, float]] = defaultdict(dict)
    for path in sorted(outputs.rglob("metrics.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            numbers = {k: float(v) for k, v in row.items() if isinstance(v, int | float) and k not in ("step", "time")}
            steps[int(row["step"])] |= numbers
    return dict(steps)


def _summary(arm: str, config: RunConfig, steps: dict[int, dict[str, float]]) -> SummaryRow:
    """PRIME-RL's mean reward over the held-out attempts is pass@1 where verdicts are 0 or 1."""
    found = float("nan")
    for _, metrics in sorted(steps.items()):
        for name, value in metrics.items():
            if "held_out" in name and name.endswith(f"avg@{config.eval.samples}"):
                found = value
    return SummaryRow(arm=arm, pass_at_1=found, pass_at_1_se=float("nan"), rollouts=None, tokens=None, cpu_s=None)


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
    """What to put before PYTHONPATH so that PRIME-RL is found."""
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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*search, *([inherited] if inherited else [])])}
    command = (sys.executable, "-m", "composer_replication.recipes.prime_rl.launcher", "rl", "@", str(toml))
    log = toml.parent / "launcher.log"
    with log.open("ab") as stream:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=stream, stderr=stream)
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
    if status != 0:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL:])
        raise BackendError(f"PRIME-RL ended with status {status}:\n{said}", fix=f"see {log} and the logs beside it")
