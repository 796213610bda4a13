"""Replicas as processes of this machine: the command that a cloud would run, in fresh interpreters."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from typing import ClassVar

from composer_replication.diloco.serverless.base import ServerlessExecutor, Sight
from composer_replication.diloco.serverless.launch import Launch
from composer_replication.diloco.serverless.protocol import ReplicaStatus
from composer_replication.diloco.serverless.replica_entrypoint import CANCELLED, PARENT_ENV, TIMED_OUT
from composer_replication.types.errors import ConfigError

_STOP_S = 30.0
"""Seconds for a replica to end its trainer and write to the store, before it is killed."""
_ENDS = {0: ReplicaStatus.SUCCEEDED, TIMED_OUT: ReplicaStatus.TIMED_OUT, CANCELLED: ReplicaStatus.CANCELLED}


class _Replica:
    """One process and its own output; its trainer's output goes into the store."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - until it has ended
        self._words = b""
        self.process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,  # an interrupt at the terminal is for the process that collects
        )

    def status(self) -> int | None:
        """Return its exit status; None while it runs."""
        status = self.process.poll()
        if status is not None and not self._said.closed:
            self._said.seek(0)
            self._words = self._said.read()
            self._said.close()
        return status

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_S)
        self.process.kill()
        self.process.wait()
        self.status()

    def words(self) -> str:
        """Return the output of an ended replica."""
        return self._words.decode("utf-8", "replace")


class LocalProcessExecutor(ServerlessExecutor):
    """Spawns each replica as a separate process, with this one's environment and module path.

    Replicas end when the process that launched them ends, however it does.
    """

    backend_name: ClassVar[str] = "local"
    supports_inter_replica_network: ClassVar[bool] = True
    poll_interval_s = 0.1

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._replicas: dict[str, _Replica] = {}

    def _check(self, launch: Launch, gpu: str | None) -> None:  # noqa: ARG002
        if gpu is not None:
            fix = "leave gpu out: replicas see this machine's; ModalExecutor and SkyExecutor rent what gpu names"
            raise ConfigError(f"a local replica cannot be given a GPU by name ({gpu})", fix=fix)

    def _start(self, launch: Launch, rank: int, gpu: str | None) -> str:  # noqa: ARG002
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        environment = {**os.environ, launch.rank_env: str(rank), PARENT_ENV: str(os.getpid()), "PYTHONPATH": path}
        replica = _Replica([sys.executable, *launch.arguments()], environment)
        identity = f"{launch.job}-{replica.process.pid}"
        with self._lock:
            self._replicas[identity] = replica
        return identity

    def _look(self, identity: str) -> Sight:
        status = self._of(identity).status()
        if status is None:
            return Sight(ReplicaStatus.RUNNING)
        return Sight(_ENDS.get(status, ReplicaStatus.FAILED), f"it ended with status {status}")

    def _stop(self, identity: str) -> None:
        self._of(identity).stop()

    def _last_words(self, identity: str) -> str:
        return self._of(identity).words()

    def _of(self, identity: str) -> _Replica:
        if (found := self._replicas.get(identity)) is None:
            raise ConfigError(
                f"replica {identity} is none of this executor's", fix="ask the one that launched it, in its process"
            )
        return found
