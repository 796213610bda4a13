"""The replicas of a job, with a handle for each rank: they are watched, and launched again when they are lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from composer_replication.config import RunConfig, to_toml
from composer_replication.diloco.serverless.base import ServerlessExecutor
from composer_replication.diloco.serverless.patience import Patience
from composer_replication.diloco.serverless.protocol import ReplicaHandle, ReplicaStatus
from composer_replication.diloco.serverless.records import Records
from composer_replication.diloco.store import open_store
from composer_replication.recipes.diloco.learner_state import LearnerState
from composer_replication.recipes.diloco.status import Status, read_status
from composer_replication.types.errors import (
    BackendError,
    ChannelOffError,
    ComposerError,
    ConfigError,
    ModelError,
    ReplicaError,
    TaskError,
    TeacherError,
    TraceError,
)

ENTRY = "composer_replication.recipes.diloco.replica:train_replica"
_LOOK_S, _AGAIN_S = 1.0, 30.0
"""Seconds between looks, and until a launch that the backend refused is tried again."""
_AGAIN = "see why; what the job has reached is in the store: go on with --resume"
_LASTING = (ConfigError, TaskError, ModelError, TeacherError, ChannelOffError, TraceError)
"""Errors that a replacement of the replica would meet too."""

Seen = Callable[[Sequence[tuple[ReplicaHandle, ReplicaStatus, Status | None]]], None]
"""Told again and again where every replica is."""
Told = Callable[[str], None]
"""Told in a line what has happened to a replica."""


class Fleet:
    """The replicas of one start of a job."""

    def __init__(self, config: RunConfig, uri: str, executor: ServerlessExecutor, kept: LearnerState, told: Told) -> None:
        self._options, self._executor, self._kept, self._told = config.diloco, executor, kept, told
        self._store = open_store(uri)
        absolute = config.model_copy(update={"out": config.out.absolute()})
        self._arguments = {"rendezvous_uri": uri, "run": to_toml(absolute)}
        self._handles: list[ReplicaHandle] = []
        self._states = [ReplicaStatus.PENDING] * config.diloco.replicas
        self._restarts = [0] * config.diloco.replicas
        self._not_before = [0.0] * config.diloco.replicas
        self._patience = Patience()

    def launch(self) -> None:
        """Start every replica. Raises ConfigError, BackendError and StorageError."""
        self._handles = self._launch(None)
        self._kept.put(self._handles)

    def run(self, seen: Seen) -> list[Any]:
        """Wait until all replicas have ended, and return each one's result, in the order of ranks.

        Raises:
            ReplicaError: replicas failed and are not launched again.
            BackendError: the backend has not answered for minutes.
        """
        while True:
            self._look(seen)
            lost = [rank for rank, state in enumerate(self._states) if state.final and state is not ReplicaStatus.SUCCEEDED]
            if any(self._given_up(rank) for rank in lost) or all(state is ReplicaStatus.SUCCEEDED for state in self._states):
                break
            for rank in lost:
                self._again(rank)
            time.sleep(_LOOK_S)
        try:
            return self._executor.collect(self._handles)
        except ReplicaError as error:
            often = "".join(f"\nreplica {rank} had been started again {self._restarts[rank]} times" for rank in error.failures)
            error.message += often if any(self._restarts[rank] for rank in error.failures) else ""
            error.fix = f"{error.fix}; then {_AGAIN}" if error.fix else _AGAIN
            raise

    def close(self, why: BaseException | None) -> None:
        """Cancel what still runs after `why` ended the job; a failure to cancel is added to the message of `why`.

        Raises:
            BackendError: the job was interrupted, and replicas may still run.
        """
        try:
            if why is not None:
                self._executor.cancel(self._handles)
        except BackendError as error:
            if not isinstance(why, Exception):
                raise BackendError(f"interrupted; {error.message}", fix=f"{error.fix}, or go on with --resume") from why
            if not isinstance(why, ComposerError):
                why.add_note(error.message)
            elif "may still run" not in why.message:
                why.message = f"{why.message}\n{error.message}"
            return
        self._kept.remove()

    def _launch(self, ranks: Sequence[int] | None) -> list[ReplicaHandle]:
        options = self._options
        timeout = options.executor.timeout_s
        return self._executor.launch_replicas(options.replicas, ENTRY, self._arguments, timeout=timeout, ranks=ranks)

    def _look(self, seen: Seen) -> None:
        """Poll every replica and report its state; the last known state where polling fails."""
        for rank, handle in enumerate(self._handles):
            found = self._patience.ask(handle.metadata["id"], partial(self._executor.poll, handle))
            self._states[rank] = self._states[rank] if found is None else found
        rows = zip(self._handles, self._states, strict=True)
        seen([(handle, state, read_status(self._store, handle.rank)) for handle, state in rows])

    def _given_up(self, rank: int) -> bool:
        """Return whether a failed replica is not launched again: it was cancelled, or another would meet the same error."""
        if self._states[rank] is not ReplicaStatus.FAILED or self._restarts[rank] >= self._options.executor.restarts:
            return True
        outcome = Records.of(self._handles[rank].metadata, rank).outcome()
        return outcome is not None and outcome.exit_code in {kind.exit_code for kind in _LASTING}

    def _again(self, rank: int) -> None:
        """Launch a lost replica again: its state is in the store."""
        if time.monotonic() < self._not_before[rank]:
            return
        try:
            self._executor.collect([self._handles[rank]])
            return  # its result has just come
        except ReplicaError as error:
            why = error.failures[rank].splitlines()[0]
        self._restarts[rank] += 1
        which = f"restart {self._restarts[rank]} of {self._options.executor.restarts}"
        try:
            (self._handles[rank],) = self._launch([rank])
        except BackendError as error:
            self._not_before[rank] = time.monotonic() + _AGAIN_S
            self._told(f"replica {rank} was lost ({why}) and could not be started again ({which}): {error.message}")
            return
        self._kept.put(self._handles)
        self._states[rank] = ReplicaStatus.PENDING
        self._told(f"replica {rank} was lost ({why}) and is started again ({which})")
