"""`substrate.type = "monarch"`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer_replication.config import RunConfig
from composer_replication.observe import Phase
from composer_replication.observe.summary import SummaryRow
from composer_replication.trainer.run_context import RunContext
from composer_replication.types.errors import ConfigError

if TYPE_CHECKING:
    from composer_replication.recipes.monarch.mesh import MonarchMesh


def mesh_of(config: RunConfig) -> MonarchMesh:
    """Start the mesh of an arm, whose trainer is `substrate.trainers` ranks.

    Raises:
        ConfigError: there are fewer GPUs than ranks.
        MissingExtraError: Monarch is not installed.
    """
    import torch

    from composer_replication.loss.forward.models import resolve_device
    from composer_replication.recipes.monarch.mesh import MonarchMesh

    if resolve_device(config.model.device).type == "cuda" and torch.cuda.device_count() < config.substrate.trainers:
        raise ConfigError(
            f"substrate.trainers = {config.substrate.trainers}: each trains on a separate GPU, "
            f"and this machine has {torch.cuda.device_count()}",
            fix="lower it, or set model.device = cpu",
        )
    return MonarchMesh(ranks={"trainer": config.substrate.trainers})


async def train_arm(context: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    """Train one arm on Monarch. Raises as `mesh_of` and `train_on_mesh`."""
    from composer_replication.recipes.mesh.driver import train_on_mesh

    return await train_on_mesh(mesh_of(config), context, config, arm, shown)
