"""The handles of a job's replicas, kept on disk while they may run: the next start of the job ends those replicas first."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial

from pydantic import TypeAdapter

from composer_replication.config import RunConfig
from composer_replication.diloco.serverless.base import ServerlessExecutor
from composer_replication.diloco.serverless.patience import Patience
from composer_replication.diloco.serverless.protocol import ReplicaHandle
from composer_replication.observe.files import exclusive, remove, replace_file, storage_errors
from composer_replication.types.errors import BackendError, ConfigError, StorageError

_HANDLES = TypeAdapter(list[ReplicaHandle])
_LOOK_S, _END_S = 1.0, 180.0
"""Seconds between looks at replicas that were told to end, and for them to have ended."""


class LearnerState:
    """The handles in the folder of a run: written whole, and removed when all replicas have ended."""

    def __init__(self, config: RunConfig) -> None:
        self.path = config.out.absolute() / config.name / "replicas.json"

    def put(self, handles: list[ReplicaHandle]) -> None:
        """Write the handles. Raises StorageError."""
        replace_file(self.path, json.dumps([asdict(handle) for handle in handles], indent=1).encode())

    def remove(self) -> None:
        """Delete the file. Raises StorageError."""
        remove([self.path])

    def read(self) -> list[ReplicaHandle]:
        """Return the handles that were kept, or none where there is no file. Raises StorageError."""
        if not self.path.exists():
            return []
        with storage_errors(self.path, "read"):
            data = self.path.read_bytes()
        try:
            return _HANDLES.validate_json(data)
        except ValueError as error:
            fix = "see that no replica of this job runs any more, and remove it"
            raise StorageError(f"{self.path} has no handles of replicas: {error}", fix=fix) from error

    def end(self, executor: ServerlessExecutor) -> None:
        """End what still runs of an earlier start, and wait until it has ended.

        Raises:
            BackendError: replicas of it may still run; they are named.
            StorageError: the handles cannot be read.
        """
        handles = self.read()
        rented = [handle for handle in handles if handle.backend_name != "local"]
        try:
            executor.cancel(rented)
            self._wait(executor, rented, [handle for handle in handles if handle not in rented])
        except (ConfigError, BackendError) as error:
            names = ", ".join(f"{handle.rank} ({handle.metadata['id']}, {handle.backend_name})" for handle in handles)
            told = f"replicas of an earlier start may still run: {names}; {error.message}"
            raise BackendError(told, fix=f"end them there, and remove {self.path}") from error
        self.remove()

    def _wait(self, executor: ServerlessExecutor, rented: list[ReplicaHandle], local: list[ReplicaHandle]) -> None:
        until = time.monotonic() + _END_S
        patience = Patience()
        while True:
            found = [patience.ask(handle.metadata["id"], partial(executor.poll, handle)) for handle in rented]
            if all(state is not None and state.final for state in found) and all(map(self._free, local)):
                return
            if time.monotonic() > until:
                raise BackendError(f"they have not ended within {_END_S:g} s")
            time.sleep(_LOOK_S)

    def _free(self, handle: ReplicaHandle) -> bool:
        """Return whether a local replica, which ends with the process that launched it, has let go of its folder."""
        folder = self.path.parent / f"replica_{handle.rank:05d}"
        if not folder.is_dir():
            return True
        try:
            with exclusive(folder):
                return True
        except ConfigError:
            return False
