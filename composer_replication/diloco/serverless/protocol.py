"""The interface of executors: start replicas of a job, inspect them, take their results, stop them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

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


@runtime_checkable
class ServerlessExecutor(Protocol):
    """Starts N replicas that share nothing but an object store."""

    @property
    def backend_name(self) -> str:
        """Name that marks its handles."""
        ...

    @property
    def supports_inter_replica_network(self) -> bool:
        """True when replicas can open connections to each other."""
        ...

    def launch_replicas(
        self,
        n_replicas: int,
        entrypoint: str | Callable[..., Any],
        entrypoint_args: Mapping[str, Any],
        *,
        gpu: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        ranks: Sequence[int] | None = None,
    ) -> list[ReplicaHandle]:
        """Start `n_replicas`, each with its rank in the environment, and return their handles in the order of ranks.

        Args:
            entrypoint: a function (or `module:qualname`) that each replica calls, or the name of the module
                `composer_replication.diloco.serverless.replica_entrypoint`.
            entrypoint_args: `rendezvous_uri` is needed. `world_size` and `rank_env` may be given. The rest are the function's
                arguments, plain JSON; for the module they are `trainer_module`, `trainer_fn` and `trainer_kwargs`.
            gpu: what each replica gets, in the backend's notation; None for what the executor was made with.
            timeout: seconds after which a replica is ended.
            ranks: only these of them, in the place of replicas that were lost; None for all.

        Raises:
            ConfigError: something that cannot be launched so.
            BackendError: the backend refuses or does not answer; what had been started is ended.
        """
        ...

    def poll(self, handle: ReplicaHandle) -> ReplicaStatus:
        """Return the state of a replica.

        Raises:
            ConfigError: a handle of another executor.
            BackendError: the backend does not answer.
        """
        ...

    def collect(self, handles: Sequence[ReplicaHandle], timeout: float | None = None, *, keep_going: bool = False) -> list[Any]:
        """Wait for replicas and return what they returned, in the order of `handles`.

        Args:
            timeout: seconds to wait; None for as long as it takes.
            keep_going: the first failure does not end the others.

        Raises:
            ReplicaError: replicas failed (the others have been cancelled, or have ended with `keep_going`), or some still run
                after `timeout` seconds (they go on, and can be collected again).
            BackendError: the backend has not answered for minutes; they go on.
        """
        ...

    def cancel(self, handles: Sequence[ReplicaHandle]) -> None:
        """End replicas that have not ended: each receives the request, even if stopping another fails.

        Raises:
            ConfigError: a handle of another executor; nothing is done.
            BackendError: those that it names may still run, as the backend does not answer or refuses.
        """
        ...

    def logs(self, handle: ReplicaHandle) -> str:
        """Return what a replica has printed, as far as it has reached the store."""
        ...
