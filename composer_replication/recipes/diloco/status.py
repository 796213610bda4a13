"""A replica's report of its progress, for the process that watches the job."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from composer_replication.diloco.store import Store
from composer_replication.diloco.wire import DamagedError, parsed


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of one replica after a step."""

    rank: int
    arm: str
    step: int
    steps: int
    round: int
    """Rounds held so far in this arm."""
    members: int
    """Replicas in the last round."""
    bytes_up: int
    """Bytes sent in all its rounds since it was started."""
    bytes_down: int
    stall_s: float
    """Seconds it has waited for rounds since it was started."""
    seconds: float
    """Since it was started."""
    reward: float | None
    """Mean of its last rollouts."""


_STATUS = TypeAdapter(Status)


def write_status(store: Store, status: Status) -> None:
    """Store the status where `read_status` looks. Raises ObjectStoreError."""
    store.put(f"status/{status.rank:05d}.json", json.dumps(asdict(status)).encode())


def read_status(store: Store, rank: int) -> Status | None:
    """Return a replica's last status, or None where it has written none or it cannot be parsed.

    A damaged status does not end the job: it is only shown.

    Raises:
        ObjectStoreError: the store cannot be read.
    """
    try:
        found = parsed(_STATUS, store.get(f"status/{rank:05d}.json") or b"")
    except DamagedError:
        return None
    return found if found.rank == rank else None
