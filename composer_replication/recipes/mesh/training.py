"""Train an arm on a mesh, whatever the mesh is made of."""

from __future__ import annotations

from composer_replication.config import RunConfig
from composer_replication.observe import Phase
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.limits import refuse
from composer_replication.recipes.mesh.protocol import Mesh
from composer_replication.trainer.run_context import RunContext


def check(config: RunConfig) -> None:
    """Raise ConfigError when an arm asks for something that no mesh can do."""
    refuse(config, config.substrate.type)


async def train_arm(mesh: Mesh, context: RunContext, config: RunConfig, arm: str, shown: Phase) -> SummaryRow:
    """Train one arm with actors of `mesh`, and close the mesh.

    Raises:
        BackendError: the mesh does not start, or an actor dies again and again.
        ComposerError: any other error of a part of the recipe.
    """
    from composer_replication.recipes.mesh.driver import Driver

    try:
        return await Driver(mesh, context, config, arm, shown).run()
    finally:
        await mesh.close()
