"""`substrate.type = "monarch"`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from composer_replication.config import RunConfig
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.mesh import training
from composer_replication.recipes.mesh.training import check

if TYPE_CHECKING:
    from composer_replication.recipes.monarch.mesh import MonarchMesh

__all__ = ["check", "mesh_of", "train"]


def mesh_of(config: RunConfig) -> MonarchMesh:
    """The mesh of a run, whose trainer is `substrate.trainers` ranks. Raises MissingExtraError when Monarch is not installed."""
    from composer_replication.recipes.monarch.mesh import MonarchMesh

    return MonarchMesh(ranks={"trainer": config.substrate.trainers})


async def train(config: RunConfig, run_dir: RunDir, terminal: Terminal, *, start_label: str = "start") -> list[SummaryRow]:
    """As `mesh.training.train`, on Monarch. Raises MissingExtraError when it is not installed."""
    return await training.train(partial(mesh_of, config), config, run_dir, terminal, start_label=start_label)
