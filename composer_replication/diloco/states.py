"""States that every replica holds alike (global parameters, the outer optimizer), for those that start again or join late."""

from __future__ import annotations

import json

from composer_replication.diloco.store import Store
from composer_replication.diloco.wire import digest

__all__ = ["newest_state", "publish_state"]

_READY = "ready"


def publish_state(store: Store, number: int, payload: bytes, *, keep: int = 2) -> bool:
    """Put a state, and remove all but the newest `keep`; whether this call was the first to put this one.

    Its bytes are there before it can be found, and who publishes the same number later changes nothing.

    Args:
        number: how far the run has come; grows.
        payload: the same bytes in every replica.

    Raises:
        ValueError: `keep` is below 1.
        ObjectStoreError: the store failed.
    """
    if keep < 1:
        raise ValueError("at least the newest state has to be kept")
    mark = digest(payload)
    folder = f"states/{number:08d}"
    if store.exists(f"{folder}/{_READY}"):
        return False
    store.put(f"{folder}/{mark}", payload)
    first = store.create(f"{folder}/{_READY}", json.dumps({"digest": mark, "length": len(payload)}).encode())
    ready = _ready(store)
    oldest = ready[-keep:][0]
    store.delete(*(key for key in store.list("states") if int(key.split("/")[1]) < oldest))
    return first


def newest_state(store: Store) -> tuple[int, bytes] | None:
    """Number and bytes of the newest state that is whole; None where there is none."""
    for number in reversed(_ready(store)):
        payload = _read(store, f"states/{number:08d}")
        if payload is not None:
            return number, payload
    return None


def _ready(store: Store) -> list[int]:
    return [int(key.split("/")[1]) for key in store.list("states") if key.endswith(f"/{_READY}")]


def _read(store: Store, folder: str) -> bytes | None:
    """None: it has been removed meanwhile, or is damaged."""
    try:
        mark = json.loads(store.get(f"{folder}/{_READY}") or b"{}").get("digest")
    except ValueError:
        return None
    payload = store.get(f"{folder}/{mark}")
    return payload if payload is not None and digest(payload) == mark else None
