"""`substrate.type = "ray"`."""

from __future__ import annotations

from composer_replication.config import RunConfig
from composer_replication.observe import Phase
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.mesh import training
from composer_replication.recipes.mesh.training import check
from composer_replication.trainer.run_context import RunContext

__all__ = ["check", "train_arm"]


async def train_arm(context: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    """Train one arm on Ray: on the cluster that RAY_ADDRESS names, or on one of the run's own. Raises as `training.train_arm`."""
    from composer_replication.recipes.ray.mesh import RayMesh

    return await training.train_arm(RayMesh(), context, config, arm, shown)
