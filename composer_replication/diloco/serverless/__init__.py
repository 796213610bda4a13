"""Replicas that share nothing but an object store, on this machine or in somebody's cloud."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.diloco.all_reduce import ObjectStoreAllReduce
    from composer_replication.diloco.serverless.base import ServerlessExecutor
    from composer_replication.diloco.serverless.hf_jobs import HFJobsExecutor
    from composer_replication.diloco.serverless.local import LocalProcessExecutor
    from composer_replication.diloco.serverless.modal import ModalExecutor
    from composer_replication.diloco.serverless.protocol import ReplicaHandle, ReplicaStatus
    from composer_replication.diloco.serverless.replica import this_replica
    from composer_replication.diloco.serverless.sky import SkyExecutor

__all__ = [
    "HFJobsExecutor",
    "LocalProcessExecutor",
    "ModalExecutor",
    "ObjectStoreAllReduce",
    "ReplicaHandle",
    "ReplicaStatus",
    "ServerlessExecutor",
    "SkyExecutor",
    "this_replica",
]

_HERE = "composer_replication.diloco.serverless"
_WHERE = {
    "HFJobsExecutor": f"{_HERE}.hf_jobs",
    "LocalProcessExecutor": f"{_HERE}.local",
    "ModalExecutor": f"{_HERE}.modal",
    "ObjectStoreAllReduce": "composer_replication.diloco.all_reduce",
    "ReplicaHandle": f"{_HERE}.protocol",
    "ReplicaStatus": f"{_HERE}.protocol",
    "ServerlessExecutor": f"{_HERE}.base",
    "SkyExecutor": f"{_HERE}.sky",
    "this_replica": f"{_HERE}.replica",
}


def __getattr__(name: str) -> Any:
    """Import names on demand: the process that watches a replica needs no torch."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
