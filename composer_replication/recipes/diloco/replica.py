"""One replica of a job, as an executor starts it."""

from __future__ import annotations

import asyncio
import tomllib
from contextlib import closing
from functools import partial
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.diloco.serverless.replica import this_replica
from composer_replication.diloco.store import Store, open_store
from composer_replication.loss.forward import LogprobCache
from composer_replication.loss.forward.model_checkpoint import latest_checkpoint
from composer_replication.observe import Phase, Terminal
from composer_replication.observe.summary import SummaryRow
from composer_replication.observe.verdict import Verdict, run_verdicts
from composer_replication.recipes.diloco.outer import DiLoCoCallback
from composer_replication.recipes.diloco.result import put_policy
from composer_replication.trainer.arm import ArmTrainer
from composer_replication.trainer.open_run import open_run
from composer_replication.trainer.report import train
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.sampling.task_shards import TaskShard
from composer_replication.trainer.train import train_arm

_APART = 1_000_003
"""Between the seeds of two replicas."""


def train_replica(run: str) -> list[dict[str, Any]]:
    """Train this process's replica of a job to its end, resumed where the job and its folder stand; return a row for each arm.

    Args:
        run: the run file's text, resolved.

    Raises:
        ComposerError: whatever a part of the recipe has to say.
    """
    me = this_replica()
    whole = RunConfig.model_validate(tomllib.loads(run))
    config = whole.model_copy(update={"out": whole.out / whole.name, "name": f"replica_{me.rank:05d}"})
    one = partial(_train_arm, store=open_store(me.rendezvous_uri), rank=me.rank, world_size=me.world_size)
    with open_run(config, resume=True) as run_dir:
        rows = asyncio.run(train(config, run_dir, Terminal(on_event=run_dir.log_event), one=one))
        verdicts = {verdict.arm: verdict for verdict in run_verdicts(run_dir)}
    return [
        {
            **{"arm": row.arm, "pass_at_1": row.pass_at_1, "rollouts": row.rollouts, "tokens": row.tokens},
            **_judged(verdicts.get(row.arm)),
        }
        for row in rows
    ]


def _judged(verdict: Verdict | None) -> dict[str, Any]:
    """Return the verdict on an arm as plain JSON; a replica that joined at the end has taken no step, and has none."""
    if verdict is None:
        return {"verdict": "joined when the arm was done", "failed": False}
    return {"verdict": verdict.sentence(), "failed": verdict.failed}


async def _train_arm(
    context: RunContext, config: RunConfig, arm: str, shown: Phase, *, store: Store, rank: int, world_size: int
) -> SummaryRow:
    own = config.model_copy(update={"seed": (config.seed + _APART * rank) % (1 << 63)})
    shard = None
    if config.diloco.shard_tasks:
        shard = TaskShard(rank, world_size, config.seed, config.diloco.window)
        groups = config.rollout.groups // world_size
        own = own.model_copy(update={"rollout": config.rollout.model_copy(update={"groups": groups})})
    outer = DiLoCoCallback(store, rank, world_size)
    with (
        closing(outer),
        closing(LogprobCache(context.run_dir.ckpt_path / "reference.sqlite")) as pair_logprobs,
        closing(ArmTrainer.create(context, own, arm, pair_logprobs, shard)) as trainer,
    ):
        row = await train_arm(trainer, shown, [outer])
    if rank == 0:
        last = latest_checkpoint(context.run_dir.ckpt_path / arm)
        assert last is not None  # of the last step
        put_policy(store, arm, last)
    return row
