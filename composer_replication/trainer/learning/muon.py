"""Muon for the matrices inside a model's blocks, with AdamW for all other parameters (arXiv:2502.16982; MuLoCo, 2505.23725)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from composer_replication.diloco.fragments import blocks_of
from composer_replication.trainer.learning.step import StepOptimizer
from composer_replication.types.errors import ConfigError


class MuonWithAdamW(StepOptimizer):
    """`torch.optim.Muon` and `torch.optim.AdamW` as one optimizer: one step, one state dict, one place for hooks and schedules.

    Args:
        matrices: parameters of two dimensions, for Muon.
        rest: for AdamW; may be empty.
        lr: of both. Muon's updates are scaled to the size of AdamW's (`match_rms_adamw`), so that one rate serves.
        betas: of AdamW.
        momentum: of Muon, Nesterov's.
        weight_decay: of both, decoupled.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        rest: list[nn.Parameter],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        ]
        if rest:
            self._parts.append(torch.optim.AdamW(rest, lr=lr, betas=betas, weight_decay=weight_decay))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _step(self) -> None:
        for part in self._parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Let both work on this optimizer's groups and state, which schedules change and `load_state_dict` replaces."""
        for index, part in enumerate(self._parts):
            part.param_groups = [self.param_groups[index]]
            part.state = self.state


def make_muon(
    model: nn.Module, *, lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
) -> MuonWithAdamW:
    """Make Muon for the matrices inside a model's blocks, with AdamW for embeddings, head, norms and biases.

    Raises:
        ConfigError: the model's blocks have no matrix.
    """
    inside: set[Tensor] = {p for block in blocks_of(model) for p in block.values() if p.ndim == 2}
    trainable = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trainable if p in inside]
    if not matrices:
        raise ConfigError("the model's blocks have no trainable matrix for Muon", fix="set optimizer.type = adamw")
    return MuonWithAdamW(matrices, [p for p in trainable if p not in inside], lr=lr, betas=betas, weight_decay=weight_decay)
