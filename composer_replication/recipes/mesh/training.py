"""Train an arm on a mesh, whatever the mesh is made of."""

from __future__ import annotations

from composer_replication.config import RunConfig
from composer_replication.observe import Phase
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.mesh.protocol import Mesh
from composer_replication.trainer.run_context import RunContext
from composer_replication.types.errors import ConfigError

__all__ = ["check", "train_arm"]


def check(config: RunConfig) -> None:
    """Raise ConfigError when an arm asks for something that no mesh can do."""
    elsewhere = "set substrate.type = local, or leave it out"
    if config.curriculum.enabled:
        raise ConfigError(
            "curriculum.enabled: a mesh issues groups before the verdicts are in that a curriculum chooses by", fix=elsewhere
        )
    if config.rollout.refills > 0:
        raise ConfigError(
            "rollout.refills: a mesh issues groups before it is known which of a step's teach nothing", fix=elsewhere
        )


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
