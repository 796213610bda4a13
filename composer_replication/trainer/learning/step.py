"""`Optimizer.step` with its closure, for optimizers of ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import overload

import torch


class StepOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer that implements `_step`, and leaves the closure of `step` to this class."""

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step. `closure` evaluates the loss again and returns it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss

    @abstractmethod
    def _step(self) -> None:
        """Change the parameters by their gradients."""
