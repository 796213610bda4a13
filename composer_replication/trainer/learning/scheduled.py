"""An optimizer together with the schedule of its rate, as a learner steps, saves and restores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from composer_replication.config import OptimizerConfig
from composer_replication.trainer.learning.optimizers import make_optimizer, rate_share
from composer_replication.trainer.learning.sharding import load_whole_optimizer, on_first_rank


class ScheduledOptimizer:
    """The optimizer that `options` name, over a model's trainable parameters.

    Args:
        steps: of the run, for the schedule.
        sharded: the model's weights are shared out among processes.
    """

    def __init__(
        self, accelerator: Accelerator, model: nn.Module, options: OptimizerConfig, steps: int, *, sharded: bool
    ) -> None:
        made, self.schedule = make_optimizer(model, options, steps)
        # its state is where it belongs: accelerate would move it
        self.optimizer = accelerator.prepare_optimizer(made, device_placement=False)
        self._options, self._steps, self._sharded = options, steps, sharded

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return float(self.schedule.get_last_lr()[0])

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; with sharded weights every rank has to call this at the same time, and the first gets
        what one process would have."""
        optimizer = self.optimizer.state_dict()
        return {"optimizer": on_first_rank(optimizer) if self._sharded else optimizer, "schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, sharded or not."""
        if self._sharded:
            load_whole_optimizer(self.optimizer, state["optimizer"])
        else:
            self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])

    def skip_to(self, step: int) -> None:
        """Count from a later step: the rate is what the schedule has there."""
        share = rate_share(self._options, self._steps, step)
        rates = [base * share for base in self.schedule.base_lrs]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = torch.as_tensor(rate).to(group["lr"]) if isinstance(group["lr"], Tensor) else rate  # torchao's is one
        self.schedule.load_state_dict(
            {**self.schedule.state_dict(), "last_epoch": step, "_step_count": step + 1, "_last_lr": rates}
        )
