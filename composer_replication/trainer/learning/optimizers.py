"""The optimizer that a run file names, and the schedule of its rate."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from composer_replication.config import OptimizerConfig
from composer_replication.trainer.learning.low_memory import OffloadedAdamW, StochasticRoundingAdamW, make_8bit_adamw
from composer_replication.trainer.learning.muon import make_muon


def make_optimizer(
    model: nn.Module, options: OptimizerConfig, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    """Return the optimizer that `options` name, over a model's trainable parameters, and the schedule of its rate over so many
    `steps`.

    Raises ConfigError and MissingExtraError where it cannot be had.
    """
    chosen: dict[str, Any] = {"lr": options.learning_rate, "betas": options.betas, "weight_decay": options.weight_decay}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer: torch.optim.Optimizer
    if options.type == "muon":
        optimizer = make_muon(model, **chosen)
    elif options.moments == "8bit":
        optimizer = make_8bit_adamw(trained, **chosen)
    elif options.offload:
        optimizer = OffloadedAdamW(trained, **chosen)
    elif any(parameter.dtype == torch.bfloat16 for parameter in trained):
        optimizer = StochasticRoundingAdamW(trained, **chosen)
    else:
        fused = True if trained[0].is_cuda else None  # torch's own choice there makes a copy of all weights in each step
        optimizer = torch.optim.AdamW(trained, fused=fused, **chosen)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, partial(rate_share, options, steps))


def rate_share(config: OptimizerConfig, steps: int, taken: int) -> float:
    """Return the share of the learning rate for the step after `taken` of `steps`."""
    warm = min(1.0, (taken + 1) / (config.warmup_steps + 1))
    return warm if config.schedule == "constant" else warm * max(0.0, 1.0 - taken / steps)
