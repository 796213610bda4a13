"""data-juicer's executors in a separate process, which may log, fork and die without harm to this one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from composer_replication.replaysim.data_juicer import NO_INSTALLS, DataJuicerBackend
from composer_replication.replaysim.recipe import Operator
from composer_replication.types.errors import BackendError, StorageError

WORKER = "composer_replication.replaysim.worker"
NO_SPACE = "No space left on device"
_TAIL_BYTES, _TAIL_LINES = 1 << 16, 40
_REACH_S = 10.0


class ExecutorBackend(DataJuicerBackend):
    """data-juicer's `DefaultExecutor` or `RayExecutor`, one pass per field (see `backend.plan`).

    Args:
        ray: run on Ray.
        ray_address: of a running cluster; None starts one on this machine and ends it with the call.

    Raises:
        MissingExtraError: data-juicer or something it needs is not installed.
        BackendError: nothing answers at the address.
    """

    def __init__(self, *, ray: bool, ray_address: str | None) -> None:
        self._name = "ray" if ray else "executor"
        self._ray_address = (ray_address or "local") if ray else None
        super().__init__()
        if ray_address is not None:
            _reach(ray_address)

    def verdicts(self, operators: Sequence[Operator], columns: Mapping[str, Sequence[str]]) -> list[int | None]:
        """Return for every row the index of the operator that drops it, None when it stays.

        Raises:
            BackendError: the process died or broke; the end of what it wrote to stderr is in the message.
            StorageError: there is no room for its files.
        """
        if not columns["chosen"]:
            return []
        request = {"operators": [asdict(operator) for operator in operators], "columns": columns, "ray": self._ray_address}
        try:
            with tempfile.TemporaryDirectory(prefix="replaysim-") as name:
                folder = Path(name)
                (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
                self._run(folder)
                verdicts: list[int | None] = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise _no_room(f"cannot keep files for data-juicer: {error.strerror or error}") from error
        return verdicts

    def _run(self, folder: Path) -> None:
        """Run the worker on a folder. Its output goes to memory: on a full disk there is no other place for it."""
        log = os.memfd_create("replaysim")
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", WORKER, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(folder),
                start_new_session=True,
            )
            try:
                code = process.wait()
            finally:
                _end(process)
            if code != 0:
                raise self._failure(code, _tail(log))
        finally:
            os.close(log)

    def _failure(self, code: int, log: str) -> BackendError | StorageError:
        if NO_SPACE in log:
            return _no_room(f"the {self._name} backend has no room for its files: {NO_SPACE}")
        last = "\n".join(log.strip().splitlines()[-_TAIL_LINES:])
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        fix = "see whether memory ran out" if code == -signal.SIGKILL else "correct what it complains about"
        return BackendError(
            f"the process of the {self._name} backend {how}; it wrote last:\n{last or '(nothing)'}",
            fix=f"{fix}, or use the backend data_juicer or builtin, which keep the same pairs",
        )


def _reach(address: str) -> None:
    """Check the address first: Ray itself tries for minutes where nothing listens."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto`, or a name that Ray knows
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except (OSError, OverflowError) as error:
        raise BackendError(
            f"no Ray cluster answers at {address}: {error}", fix="correct the address, or leave it out to start one for the call"
        ) from error


def _no_room(message: str) -> StorageError:
    return StorageError(message, fix=f"free space in {tempfile.gettempdir()}, or let TMPDIR name a folder with more")


def _environment(folder: Path) -> Mapping[str, str]:
    """Return an environment with no installs, no calls home, and caches that go with the folder."""
    cache = {"DATA_JUICER_CACHE_HOME": str(folder / "cache"), "HF_DATASETS_CACHE": str(folder / "cache" / "datasets")}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    return {**os.environ, **NO_INSTALLS, **cache, **quiet}


def _end(process: subprocess.Popen[Any]) -> None:
    """Kill whatever the worker has left of its process group, itself included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(log: int) -> str:
    size = os.fstat(log).st_size
    return os.pread(log, _TAIL_BYTES, max(0, size - _TAIL_BYTES)).decode(errors="replace")
