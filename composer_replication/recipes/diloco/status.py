"""What a replica says of itself while it trains, for whoever watches the job."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from composer_replication.diloco.store import Store

__all__ = ["Status", "read_status", "write_status"]


@dataclass(frozen=True, slots=True)
class Status:
    """One replica after a step."""

    rank: int
    arm: str
    step: int
    steps: int
    round: int
    """Rounds held so far in this arm."""
    members: int
    """Of the last round."""
    bytes_up: int
    """Of all its rounds since it was started."""
    bytes_down: int
    stall_s: float
    """Seconds it has waited for rounds since it was started."""
    seconds: float
    """Since it was started."""
    reward: float | None
    """Mean of its last rollouts."""


def write_status(store: Store, status: Status) -> None:
    """Put it where `read_status` looks. Raises ObjectStoreError."""
    store.put(f"status/{status.rank:05d}.json", json.dumps(asdict(status)).encode())


def read_status(store: Store, rank: int) -> Status | None:
    """The last one; None before the first. Raises ObjectStoreError."""
    found = store.get(f"status/{rank:05d}.json")
    return None if found is None else Status(**json.loads(found))
