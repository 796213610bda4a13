"""A run trained by TRL: every arm through `ComposerReplicationTrainer`, with the rollouts, hints and pairs of the local loop."""

from __future__ import annotations

import os
from contextlib import closing

from composer_replication.config import RunConfig
from composer_replication.loss.forward import LogprobCache
from composer_replication.observe import Phase
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.trl.options import check
from composer_replication.trainer.run_context import RunContext
from composer_replication.types.errors import ConfigError

__all__ = ["check", "train_arm"]


async def train_arm(context: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    """Train one arm from its last checkpoint, or from the start.

    Raises:
        ConfigError: there are several processes.
        ComposerError: any other error of a part of the recipe.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "a run file is trained by one process on substrate trl",
            fix="start it without a launcher, or use ComposerReplicationTrainer in a script of yours",
        )
    from composer_replication.recipes.trl.arm import TrlArm  # imports TRL, which takes seconds

    with closing(LogprobCache(context.run_dir.ckpt_path / "reference.sqlite")) as pair_logprobs:
        trained = await TrlArm.create(context, config, arm, shown, pair_logprobs)
        trained.train()
        return trained.journal.summary()
