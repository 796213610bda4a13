"""Optimizer steps as one process takes them, or one of several."""

from __future__ import annotations

from typing import Any

import torch

from composer_replication.batch import Batch
from composer_replication.config import RunConfig
from composer_replication.trainer.learner import Learner
from composer_replication.trainer.models import load_policy


def learn(_rank: int, config: RunConfig, batch: Batch, steps: int, sharded: bool = False) -> dict[str, Any]:
    """Weights, TAID clock and what each step said after `steps` steps on the same batch."""
    torch.manual_seed(0)
    policy, _ = load_policy(config.model)
    learner = Learner(policy, config, sharded=sharded)
    seen = [learner.update(batch) for _ in range(steps)]
    return {
        "weights": learner.weights(),
        "taid": None if learner.taid is None else learner.taid.state_dict(),
        "metrics": [dict(result.metrics) for result in seen],
        "off": [dict(result.off) for result in seen],
    }
