"""The base of all executors: a backend only starts a command, looks at it and stops it; logs and results come from the store."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from composer_replication.diloco.serverless.launch import Launch, chosen, plan
from composer_replication.diloco.serverless.patience import Patience
from composer_replication.diloco.serverless.protocol import DEFAULT_TIMEOUT_S, ReplicaHandle, ReplicaStatus
from composer_replication.diloco.serverless.records import Records, ReplicaOutcome
from composer_replication.types.errors import BackendError, ComposerError, ConfigError, ObjectStoreError, ReplicaError
from composer_replication.types.secrets import without_secrets

_STARTERS = 16
"""Replicas that are started at once: a backend may take minutes to find a machine for one."""
_STOPS = 2
"""How often a running replica is told to end, where the backend does not accept it."""
_TAIL_BYTES, _READ_BYTES = 2000, 10_000
"""Bytes of a failed replica's log that an error message quotes, and those that are read: a key among them is then whole."""


@dataclass(frozen=True)
class Sight:
    """A backend's view of a replica."""

    status: ReplicaStatus
    why: str = ""
    """Why it failed, in the backend's words."""


class ServerlessExecutor(ABC):
    """Starts N replicas that share nothing but an object store, over a backend that can start a command somewhere."""

    backend_name: ClassVar[str]
    """Name that marks its handles."""
    supports_inter_replica_network: ClassVar[bool] = False
    """True when replicas can open connections to each other."""
    poll_interval_s: float = 5.0
    """Seconds between looks while results are waited for."""

    def __init__(self) -> None:
        self._cancelled: set[str] = set()

    @abstractmethod
    def _check(self, launch: Launch, gpu: str | None) -> None:
        """Raise ConfigError for what this backend cannot do."""

    @abstractmethod
    def _start(self, launch: Launch, rank: int, gpu: str | None) -> str:
        """Start a replica; the backend's name for it. Raises ConfigError and BackendError."""

    @abstractmethod
    def _look(self, identity: str) -> Sight:
        """Ask the backend about a replica. Raises BackendError."""

    @abstractmethod
    def _stop(self, identity: str) -> None:
        """End a replica; one that has ended stays as it is. Raises BackendError."""

    def _last_words(self, identity: str) -> str:  # noqa: ARG002 - a backend's hook
        """Return the backend's own record of a replica's output, for one that never reached the store."""
        return ""

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
        launch = plan(n_replicas, entrypoint, entrypoint_args, timeout)
        wanted = chosen(n_replicas, ranks)
        self._check(launch, gpu)
        with ThreadPoolExecutor(min(len(wanted), _STARTERS), "launch") as pool:
            starts = [pool.submit(self._start, launch, rank, gpu) for rank in wanted]
            try:
                return [self._handle(launch, rank, start.result()) for rank, start in zip(wanted, starts, strict=True)]
            except BaseException as error:  # also an interruption: what runs, costs
                for start in starts:
                    start.cancel()
                wait(starts)
                begun = [start.result() for start in starts if not start.cancelled() and start.exception() is None]
                left = self._stop_all(begun, self._stop)
                if not left:
                    raise
                said = error.message if isinstance(error, ComposerError) else type(error).__name__
                message = f"{said}; and these replicas still run, as they cannot be ended: {', '.join(left)}"
                raise BackendError(message, fix=f"end them at {self.backend_name}") from error

    def poll(self, handle: ReplicaHandle) -> ReplicaStatus:
        """Return the state of a replica.

        Raises:
            ConfigError: a handle of another executor.
            BackendError: the backend does not answer.
        """
        return self._ended(handle)[0]

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
        deadline = None if timeout is None else time.monotonic() + timeout
        ended: dict[int, tuple[ReplicaStatus, ReplicaOutcome | None, str]] = {}
        patience = Patience()
        while True:
            for place, handle in enumerate(handles):
                if place not in ended:
                    found = patience.ask(self._identity(handle), partial(self._ended, handle))
                    if found is not None and found[0].final:
                        ended[place] = found
            failed = [place for place, found in ended.items() if found[0] is not ReplicaStatus.SUCCEEDED]
            left = [place for place in range(len(handles)) if place not in ended]
            if not left or (failed and not keep_going):
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise self._unfinished(handles, left, timeout, patience.outage)
            pause = self.poll_interval_s if deadline is None else min(self.poll_interval_s, deadline - time.monotonic())
            time.sleep(max(pause, 0.0))
        outcomes = [ended[place][1] if place in ended else None for place in range(len(handles))]
        results = [None if outcome is None else outcome.value for outcome in outcomes]
        if not failed:
            return results
        refusal: BackendError | None = None
        try:
            self.cancel([handles[place] for place in left])
        except BackendError as error:  # report why replicas failed
            refusal = error
        failures = {handles[place].rank: self._failure(handles[place], *ended[place]) for place in sorted(failed)}
        fix = None if refusal is None else refusal.fix
        raise ReplicaError(_describe_failures(failures, handles, left, refusal), fix=fix, failures=failures, results=results)

    def cancel(self, handles: Sequence[ReplicaHandle]) -> None:
        """End replicas that have not ended: each receives the request, even if stopping another fails.

        Raises:
            ConfigError: a handle of another executor; nothing is done.
            BackendError: those that it names may still run, as the backend does not answer or refuses.
        """
        ranks = {self._identity(handle): handle.rank for handle in handles}
        left = self._stop_all(ranks, self._end)
        for _ in range(1, _STOPS):
            if left:
                time.sleep(self.poll_interval_s)
                left = self._stop_all(left, self._end)
        if left:
            named = ", ".join(f"{ranks[identity]} ({identity})" for identity in left)
            message = f"these replicas may still run, as they cannot be ended: {named}; {next(iter(left.values())).message}"
            raise BackendError(message, fix=f"end them at {self.backend_name}")

    def logs(self, handle: ReplicaHandle) -> str:
        """Return what a replica has printed, as far as it has reached the store."""
        self._identity(handle)
        return Records.of(handle.metadata, handle.rank).log()

    def _stop_all(self, identities: Iterable[str], stop: Callable[[str], None]) -> dict[str, ConfigError | BackendError]:
        """Stop replicas; return those that could not be stopped, and why."""
        left: dict[str, ConfigError | BackendError] = {}
        for identity in identities:
            try:
                stop(identity)
            except (ConfigError, BackendError) as error:
                left[identity] = error
        return left

    def _end(self, identity: str) -> None:
        """End a replica unless it has ended. Raises ConfigError and BackendError."""
        with suppress(BackendError):  # also stop a replica that cannot be inspected
            if self._look(identity).status.final:
                return
        self._cancelled.add(identity)
        self._stop(identity)

    def _handle(self, launch: Launch, rank: int, identity: str) -> ReplicaHandle:
        facts = {"rendezvous_uri": launch.rendezvous_uri, "job": launch.job, "world_size": str(launch.world_size), "id": identity}
        return ReplicaHandle(rank, self.backend_name, facts)

    def _identity(self, handle: ReplicaHandle) -> str:
        if handle.backend_name != self.backend_name:
            fix = "ask the executor that launched it"
            raise ConfigError(f"replica {handle.rank} was launched by {handle.backend_name}, not {self.backend_name}", fix=fix)
        return handle.metadata["id"]

    def _ended(self, handle: ReplicaHandle) -> tuple[ReplicaStatus, ReplicaOutcome | None, str]:
        """Return its status, the outcome it left if it has ended, and what the backend says. The outcome is the better source."""
        identity = self._identity(handle)
        sight = self._look(identity)
        if not sight.status.final:
            return sight.status, None, ""
        outcome = Records.of(handle.metadata, handle.rank).outcome()
        if outcome is not None:
            return outcome.status, outcome, sight.why
        if identity in self._cancelled:
            return ReplicaStatus.CANCELLED, None, "cancelled"
        if sight.status is ReplicaStatus.SUCCEEDED:
            return ReplicaStatus.FAILED, None, "it ended without a result in the store"
        return sight.status, None, sight.why

    def _failure(self, handle: ReplicaHandle, status: ReplicaStatus, outcome: ReplicaOutcome | None, why: str) -> str:
        """Describe one replica's end, with its traceback or the end of its log."""
        said = (outcome.error if outcome is not None else why) or status.value
        more = outcome.traceback if outcome is not None else ""
        try:
            more = more or Records.of(handle.metadata, handle.rank).log(_READ_BYTES) or self._last_words(handle.metadata["id"])
        except (ConfigError, BackendError, ObjectStoreError) as error:
            more = f"its log cannot be read: {error.message}"
        shown = without_secrets(more)[-_TAIL_BYTES:]
        return "\n".join([without_secrets(said), *(f"  | {line}" for line in shown.splitlines() if line.strip())])

    def _unfinished(
        self, handles: Sequence[ReplicaHandle], left: Sequence[int], timeout: float | None, outage: BackendError | None
    ) -> ReplicaError:
        ranks = ", ".join(str(handles[place].rank) for place in left)
        message = f"{len(left)} of {len(handles)} replicas still run after {timeout:g} s: {ranks}"
        if outage is not None:
            message += f", as far as is known: {outage.message}"
        return ReplicaError(message, fix="collect them again with a longer timeout, or cancel them")


def _describe_failures(
    failures: Mapping[int, str], handles: Sequence[ReplicaHandle], left: Sequence[int], refusal: BackendError | None
) -> str:
    others = f"; {len(left)} that still ran {'has' if len(left) == 1 else 'have'} been cancelled" if left else ""
    if refusal is not None:
        others = f"; {refusal.message}"
    each = "\n".join(f"replica {rank}: {said}" for rank, said in failures.items())
    return f"{len(failures)} of {len(handles)} replicas failed{others}\n{each}"
