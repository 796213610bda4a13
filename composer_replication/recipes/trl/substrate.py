"""A run trained by TRL: every arm through `ComposerReplicationTrainer`, with the rollouts, hints and pairs of the local loop."""

from __future__ import annotations

import os
from contextlib import closing

import torch

from composer_replication.config import RunConfig
from composer_replication.loss.forward import LogprobCache
from composer_replication.observe import Phase, RunDir, Terminal
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.trl.options import check
from composer_replication.trainer.report import train_arms
from composer_replication.trainer.run_context import RunContext
from composer_replication.types.errors import ConfigError

__all__ = ["check", "train"]


async def train(config: RunConfig, run_dir: RunDir, terminal: Terminal, *, start_label: str = "start") -> list[SummaryRow]:
    """Train every arm of a run that `open_run` holds, and write the report; arms and steps already done are kept.

    Raises:
        ConfigError: something is wrong with the run, or there are several processes.
        ComposerError: whatever a part of the recipe has to say.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "a run file is trained by one process on substrate trl",
            fix="start it without a launcher, or use ComposerReplicationTrainer in a script of yours",
        )
    if config.threads:
        torch.set_num_threads(config.threads)
    return await train_arms(RunContext.open(config, run_dir, terminal), start_label, _train_arm)


async def _train_arm(context: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    from composer_replication.recipes.trl.arm import TrlArm  # imports TRL, which takes seconds

    with closing(LogprobCache(context.run_dir.ckpt_path / "reference.sqlite")) as pair_logprobs:
        trained = await TrlArm.create(context, config, arm, shown, pair_logprobs)
        trained.train()
        return trained.summary()
