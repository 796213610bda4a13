"""Training every arm of a run on a mesh, whatever the mesh is made of."""

from __future__ import annotations

from collections.abc import Callable

from composer_replication.config import RunConfig
from composer_replication.observe import Phase, RunDir, Terminal
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.mesh.protocol import Mesh
from composer_replication.types.errors import ConfigError

__all__ = ["check", "train"]


def check(config: RunConfig) -> None:
    """Raises ConfigError when an arm asks for what no mesh can do."""
    elsewhere = "set substrate.type = local, or leave it out"
    if config.curriculum.enabled:
        raise ConfigError(
            "curriculum.enabled: a mesh issues groups before the verdicts are in that a curriculum chooses by", fix=elsewhere
        )
    if config.rollout.refills > 0:
        raise ConfigError(
            "rollout.refills: a mesh issues groups before it is known which of a step's teach nothing", fix=elsewhere
        )


async def train(
    make_mesh: Callable[[RunConfig], Mesh], config: RunConfig, run_dir: RunDir, terminal: Terminal, *, start_label: str = "start"
) -> list[SummaryRow]:
    """As `trainer.report.train`, with actors of the mesh that `make_mesh` starts for an arm; it is closed when the arm is done.

    Raises:
        ConfigError: something is wrong with the run.
        BackendError: the mesh does not start, or an actor dies again and again.
        ComposerError: whatever a part of the recipe has to say.
    """
    from composer_replication.recipes.mesh.driver import Driver
    from composer_replication.trainer.report import train_arms
    from composer_replication.trainer.run_context import RunContext

    context = RunContext.open(config, run_dir, terminal)

    async def train_arm(context: RunContext, variant: RunConfig, arm: str, shown: Phase) -> SummaryRow:
        mesh = make_mesh(variant)
        try:
            return await Driver(mesh, context, variant, arm, shown).run()
        finally:
            await mesh.close()

    return await train_arms(context, start_label, train_arm)
