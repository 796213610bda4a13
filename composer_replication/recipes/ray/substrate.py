"""`substrate.type = "ray"`."""

from __future__ import annotations

from composer_replication.config import RunConfig
from composer_replication.observe import RunDir, Terminal
from composer_replication.observe.summary import SummaryRow
from composer_replication.recipes.mesh import training
from composer_replication.recipes.mesh.training import check

__all__ = ["check", "train"]


async def train(config: RunConfig, run_dir: RunDir, terminal: Terminal, *, start_label: str = "start") -> list[SummaryRow]:
    """As `mesh.training.train`, on Ray: the cluster that RAY_ADDRESS names, or one of the run's own.

    Raises MissingExtraError when Ray is not installed.
    """
    from composer_replication.recipes.ray.mesh import RayMesh

    return await training.train(lambda _: RayMesh(), config, run_dir, terminal, start_label=start_label)
