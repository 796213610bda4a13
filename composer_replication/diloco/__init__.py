"""Replicas that share nothing but an object store train as one."""

from __future__ import annotations

from composer_replication.diloco.all_reduce import AllReduceState, ObjectStoreAllReduce, Outcome, Pending
from composer_replication.diloco.codecs import CODECS, Codec, make_codec
from composer_replication.diloco.states import newest_state, publish_state
from composer_replication.diloco.store import Store, Traffic, open_store

__all__ = [
    "CODECS",
    "AllReduceState",
    "Codec",
    "ObjectStoreAllReduce",
    "Outcome",
    "Pending",
    "Store",
    "Traffic",
    "make_codec",
    "newest_state",
    "open_store",
    "publish_state",
]
