"""The actor mesh on Ray: actors in its workers, weights in its object store."""

from __future__ import annotations

from composer_replication.recipes.ray.mesh import RayMesh

__all__ = ["RayMesh"]
