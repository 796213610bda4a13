"""Replicas that share nothing but an object store train as one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.diloco.all_reduce import ObjectStoreAllReduce
    from composer_replication.diloco.codecs import CODECS, make_codec
    from composer_replication.diloco.manager import MockManager, ObjectStoreManager
    from composer_replication.diloco.outer_loop import make_diloco_outer_loop as make_diloco_outer_loop
    from composer_replication.diloco.store import Store, open_store

__all__ = [
    "CODECS",
    "MockManager",
    "ObjectStoreAllReduce",
    "ObjectStoreManager",
    "Store",
    "make_codec",
    "open_store",
]

_HOME = {
    "CODECS": "codecs",
    "MockManager": "manager",
    "ObjectStoreAllReduce": "all_reduce",
    "ObjectStoreManager": "manager",
    "Store": "store",
    "make_codec": "codecs",
    "make_diloco_outer_loop": "outer_loop",  # needs an extra, and so is not part of `import *`
    "open_store": "store",
}


def __getattr__(name: str) -> Any:
    """Load an export from the module it lives in (PEP 562): the process that watches a replica needs the store, and no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
