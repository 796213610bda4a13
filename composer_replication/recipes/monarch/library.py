"""The names used of torchmonarch. Without it the actor classes can be read (`absent`), and anything else is one error that says
how to install it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

POLL_VARIABLE = "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY"
"""How often Monarch asks whether the processes of actors are there; it reads this when it is first used."""
os.environ.setdefault(POLL_VARIABLE, "500ms")  # Monarch's own value is ten seconds

if TYPE_CHECKING or (find_spec("monarch") is not None and find_spec("monarch.actor") is not None):
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
else:
    from composer_replication.recipes.monarch.absent import Actor, Port, endpoint, missing

    def __getattr__(name: str) -> object:
        """Raise MissingExtraError for a name that only Monarch has."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise missing()


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
