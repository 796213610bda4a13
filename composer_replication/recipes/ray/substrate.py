"""`substrate.type = "ray"`."""

from __future__ import annotations

from composer_replication.config import RunConfig
from composer_replication.observe import Phase
from composer_replication.observe.summary import SummaryRow
from composer_replication.trainer.run_context import RunContext


async def train_arm(context: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    """Train one arm on Ray: on the cluster that RAY_ADDRESS names, or on one of the run's own. Raises as `train_on_mesh`."""
    from composer_replication.recipes.mesh.driver import train_on_mesh
    from composer_replication.recipes.ray.mesh import RayMesh

    return await train_on_mesh(RayMesh(), context, config, arm, shown)
