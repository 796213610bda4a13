"""Facts about a replica that others know: its handle and its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

DEFAULT_TIMEOUT_S = 6 * 3600.0
"""Default time limit of a replica in seconds: a forgotten one ends, and its bill with it."""


class ReplicaStatus(StrEnum):
    """State of a replica. The last four are final."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def final(self) -> bool:
        """True when it has ended."""
        return self not in (ReplicaStatus.PENDING, ReplicaStatus.RUNNING)


@dataclass(frozen=True)
class ReplicaHandle:
    """One replica that was launched.

    Plain text throughout, so that it can be kept as JSON: another process that has the executor's credentials may poll, collect
    and cancel with it. Those of `LocalProcessExecutor` are for the executor that gave them.
    """

    rank: int
    """Rank, from 0."""
    backend_name: str
    """Name of the executor."""
    metadata: Mapping[str, str]
    """`rendezvous_uri` and `job`, under which log and result are in the store; `world_size`; and the backend's own `id`."""
