"""Optimizer steps as one process takes them, or one of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from composer_replication.config import RunConfig
from composer_replication.loss.batch_keys import Batch
from composer_replication.loss.forward.model_checkpoint import load_checkpoint, save_checkpoint
from composer_replication.loss.forward.models import load_policy
from composer_replication.observe.metrics import deterministic
from composer_replication.trainer.learning.learner import Learner


def learn(_rank: int, config: RunConfig, batch: Batch, steps: int, sharded: bool = False) -> dict[str, Any]:
    """Weights, TAID clock and what each step said after `steps` steps on the same batch."""
    torch.manual_seed(0)
    policy, _ = load_policy(config.model)
    learner = Learner(policy, config, sharded=sharded)
    seen = [learner.update(batch) for _ in range(steps)]
    return {
        "weights": learner.weights(),
        "taid": None if learner.controls.taid is None else learner.controls.taid.state_dict(),
        "metrics": [deterministic(result.metrics) for result in seen],
        "off": [dict(result.off) for result in seen],
    }


def learn_and_save(_rank: int, config: RunConfig, batch: Batch, folder: Path) -> dict[str, torch.Tensor]:
    """Weights after three steps of ranks that share the policy's out; the checkpoint after two is below `folder`."""
    learner, tokenizer = _sharded(config)
    for _ in range(2):
        learner.update(batch)
    save_checkpoint(folder, learner.version, learner, tokenizer, {})
    learner.update(batch)
    return learner.weights()


def go_on(_rank: int, config: RunConfig, batch: Batch, saved: Path) -> dict[str, torch.Tensor]:
    """Weights one step after a checkpoint, likewise."""
    learner, _ = _sharded(config)
    load_checkpoint(saved, learner)
    learner.update(batch)
    return learner.weights()


def _sharded(config: RunConfig) -> tuple[Learner, Any]:
    torch.manual_seed(0)
    policy, tokenizer = load_policy(config.model)
    return Learner(policy, config, sharded=True), tokenizer
