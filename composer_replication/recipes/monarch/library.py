"""The names used of torchmonarch, or one error that says how to install it."""

from __future__ import annotations

import os

from composer_replication.types.errors import MissingExtraError

POLL_VARIABLE = "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY"
"""How often Monarch asks whether the processes of actors are there; it reads this when it is first used."""
os.environ.setdefault(POLL_VARIABLE, "500ms")  # Monarch's own value is ten seconds

try:
    import monarch.actor as hooks
    from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError  # exported nowhere else
    from monarch.actor import (
        Actor,
        ActorError,
        HostMesh,
        MeshFailure,
        Port,
        current_rank,
        endpoint,
        this_host,
        this_proc,
    )
    from monarch.rdma import RDMABuffer, RDMATcpFallbackWarning, get_rdma_backend
    from monarch.spmd import SPMDActor
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "the Monarch mesh needs torchmonarch, which is not installed", fix="pip install 'composer-replication[monarch]'"
    ) from error

__all__ = [
    "Actor",
    "ActorError",
    "HostMesh",
    "MeshFailure",
    "Port",
    "RDMABuffer",
    "RDMATcpFallbackWarning",
    "SPMDActor",
    "SupervisionError",
    "current_rank",
    "endpoint",
    "get_rdma_backend",
    "hooks",
    "this_host",
    "this_proc",
]
