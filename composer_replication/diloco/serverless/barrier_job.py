"""The default job: a barrier that proves the rendezvous works."""

from __future__ import annotations

import torch

from composer_replication.diloco.all_reduce import ObjectStoreAllReduce
from composer_replication.diloco.serverless.replica import this_replica


def meet(timeout_s: float = 1800.0) -> dict[str, float]:
    """All-reduce this replica's rank over the store, and return the mean of all ranks.

    Raises:
        ComposerError: the store cannot be used, or the others did not come within `timeout_s` seconds.
    """
    me = this_replica()
    uri = f"{me.rendezvous_uri.rstrip('/')}/meetings/{me.job}"
    reduce = ObjectStoreAllReduce(uri, rank=me.rank, world_size=me.world_size, timeout_s=timeout_s)
    mean = reduce.allreduce(torch.tensor([float(me.rank)]), "rank")
    return {"rank": me.rank, "world_size": me.world_size, "mean_rank": mean.item()}
