"""`substrate.type = "monarch"`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer_replication.config import RunConfig
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.mesh import training
from composer_replication.recipes.mesh.training import check
from composer_replication.types.errors import ConfigError

if TYPE_CHECKING:
    from composer_replication.recipes.monarch.mesh import MonarchMesh

__all__ = ["check", "mesh_of", "train"]


def mesh_of(config: RunConfig) -> MonarchMesh:
    """The mesh of an arm, whose trainer is `substrate.trainers` ranks.

    Raises:
        ConfigError: there are fewer GPUs than ranks.
        MissingExtraError: Monarch is not installed.
    """
    import torch

    from composer_replication.loss.forward.models import resolve_device
    from composer_replication.recipes.monarch.mesh import MonarchMesh

    if resolve_device(config.model.device).type == "cuda" and torch.cuda.device_count() < config.substrate.trainers:
        raise ConfigError(
            f"substrate.trainers = {config.substrate.trainers}: each trains on a GPU of its own, "
            f"and this machine has {torch.cuda.device_count()}",
            fix="lower it, or set model.device = cpu",
        )
    return MonarchMesh(ranks={"trainer": config.substrate.trainers})


async def train(config: RunConfig, run_dir: RunDir, terminal: Terminal, *, start_label: str = "start") -> list[SummaryRow]:
    """As `mesh.training.train`, on Monarch. Raises MissingExtraError when it is not installed."""
    return await training.train(mesh_of, config, run_dir, terminal, start_label=start_label)
