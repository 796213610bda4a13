"""Check before a run that the store refuses to create an existing object; the protocol depends on it."""

from __future__ import annotations

import secrets

from composer_replication.diloco.store import Store
from composer_replication.types.errors import ObjectStoreError


def check_conditional_writes(store: Store) -> None:
    """Create an object twice, read it, remove it.

    Raises:
        ObjectStoreError: the second one was accepted, or the first is not what is read: two replicas could hold different
            outcomes of one round for true.
    """
    key = f"self-test/{secrets.token_hex(8)}"
    store.create(key, b"first")
    twice = store.create(key, b"second")
    found = store.get(key)
    listed = key in store.list("self-test")
    store.delete(key)
    if twice or found != b"first":
        raise ObjectStoreError(
            f"{store.uri} ignores conditional writes: an object was created over one that was there",
            fix="use a store that honours `If-None-Match: *` (S3, GCS, Azure, R2, MinIO, a local folder)",
        )
    if not listed:
        raise ObjectStoreError(
            f"{store.uri} does not list an object that has been written", fix="use a store whose listings are consistent"
        )
