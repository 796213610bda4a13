"""The program that runs one replica: `python -m composer_replication.diloco.serverless.replica_entrypoint`.

It starts the process that trains, carries its output and its result into the store while it runs, and ends it when its time is
up or on request. As a separate process, it can still report what happened when the trainer is killed.

Exit status: 0 done; 124 out of time; 143 cancelled; 128 + N killed by signal N; else the trainer's own: that of its error for a
`ComposerError`, 1 for any other exception. 2 where the arguments are wrong, 7 where the store is unreachable.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from composer_replication.diloco.serverless.launch import MEETING, RANK_ENV
from composer_replication.diloco.serverless.protocol import DEFAULT_TIMEOUT_S, ReplicaStatus
from composer_replication.diloco.serverless.records import LogWriter, Records, ReplicaOutcome
from composer_replication.diloco.serverless.replica import Replica
from composer_replication.diloco.serverless.trainer_process import CALL, END
from composer_replication.diloco.store import open_store
from composer_replication.types.errors import ComposerError, ConfigError, ObjectStoreError
from composer_replication.types.guarded_streams import guard_streams

PARENT_ENV = "COMPOSER_REPLICA_PARENT"
"""The process without which this one ends; unset in the cloud."""
TIMED_OUT, CANCELLED = 124, 128 + signal.SIGTERM
_LOOK_S, _GRACE_S, _TELL_S = 0.2, 5.0, 60.0
"""Seconds between looks at the trainer; for it to end after SIGTERM; for the store to take the outcome."""


class _TrainerProcess:
    """The process that trains, in a separate process group."""

    def __init__(self, folder: Path, replica: Replica, rank_env: str, told_to_end: threading.Event) -> None:
        self._folder = folder
        self._told_to_end = told_to_end
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "composer_replication.diloco.serverless.trainer_process", str(folder)],
            env={**os.environ, **replica.environment(), rank_env: str(replica.rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._begun = time.monotonic()
        self._parent = os.environ.get(PARENT_ENV)
        self.note = ""
        """An addition to its outcome for the log."""

    @property
    def output(self) -> BinaryIO:
        """Both its streams."""
        assert self._process.stdout is not None
        return self._process.stdout  # type: ignore[return-value]

    def watch(self, timeout_s: float) -> ReplicaOutcome:
        """Wait until it ends, or end it."""
        why: tuple[ReplicaStatus, int, str] | None = None
        while why is None and self._process.poll() is None:
            if self._told_to_end.is_set():
                why = ReplicaStatus.CANCELLED, CANCELLED, "cancelled"
            elif self._parent is not None and self._parent != str(os.getppid()):
                why = ReplicaStatus.CANCELLED, CANCELLED, "the process that launched it has ended"
            elif time.monotonic() - self._begun > timeout_s:
                why = ReplicaStatus.TIMED_OUT, TIMED_OUT, f"out of time: {timeout_s:g} s"
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_LOOK_S)
        if why is not None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        self._signal(signal.SIGKILL)  # also end processes it started
        status = self._process.wait()
        seconds = round(time.monotonic() - self._begun, 3)
        return ReplicaOutcome(why[0], why[1], seconds, error=why[2]) if why is not None else self._outcome(status, seconds)

    def _outcome(self, status: int, seconds: float) -> ReplicaOutcome:
        """Return its outcome when it ended by itself."""
        path = self._folder / END
        result = json.loads(path.read_text("utf-8")) if path.exists() else {}
        died = f"killed by signal {-status} ({signal.Signals(-status).name})" if status < 0 else ""
        if "value" in result:
            # native threads may abort an interpreter that ends; what the function returned is none the worse for it
            self.note = f"replica: the trainer had returned when it was {died}\n" if died else ""
            return ReplicaOutcome(ReplicaStatus.SUCCEEDED, 0, seconds, value=result["value"])
        if died:
            return ReplicaOutcome(ReplicaStatus.FAILED, 128 - status, seconds, error=died)
        error = result.get("error", f"ended with status {status} and no result")
        return ReplicaOutcome(ReplicaStatus.FAILED, status or 1, seconds, error=error, traceback=result.get("traceback", ""))

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    guard_streams()
    asked = _arguments(argv)
    try:
        return _run(asked)
    except ComposerError as error:
        print(f"replica: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code


def _run(asked: argparse.Namespace) -> int:
    replica = Replica(_rank(asked.rank_env, asked.world_size), asked.world_size, asked.rendezvous, asked.job)
    told_to_end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told_to_end.set())
    records = Records(open_store(asked.rendezvous), asked.job, replica.rank)
    facts = {
        "host": platform.node(),
        "pid": os.getpid(),
        "time": time.time(),
        "function": f"{asked.trainer_module}:{asked.trainer_fn}",
    }
    records.start(facts)
    with tempfile.TemporaryDirectory(prefix="composer-replica-") as name:
        folder = Path(name)
        call = {"module": asked.trainer_module, "name": asked.trainer_fn, "kwargs": asked.trainer_kwargs_json}
        (folder / CALL).write_text(json.dumps(call), "utf-8")
        trainer = _TrainerProcess(folder, replica, asked.rank_env, told_to_end)
        log = LogWriter(records, asked.log_interval_s)
        pump = threading.Thread(target=_pump, args=(trainer.output, log), name="replica-pump", daemon=True)
        pump.start()
        outcome = trainer.watch(asked.timeout_s)
        pump.join(_GRACE_S)  # a grandchild in a different session may still hold the pipe
        if trainer.note:
            log.feed(trainer.note.encode())
        log.close()
    if log.fault is not None:
        print(f"replica: the end of the log is not in the store: {log.fault}", file=sys.stderr)  # noqa: T201
    _write_outcome(records, outcome)
    return outcome.exit_code


def _pump(output: BinaryIO, log: LogWriter) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while data := os.read(output.fileno(), 1 << 16):
        log.feed(data)
        with contextlib.suppress(OSError):  # this process's output is no longer read
            sys.stdout.write(decoder.decode(data))
            sys.stdout.flush()


def _write_outcome(records: Records, outcome: ReplicaOutcome) -> None:
    """Put the outcome, again and again where the store does not take it. Raises ObjectStoreError."""
    deadline = time.monotonic() + _TELL_S
    while True:
        try:
            return records.end(outcome)
        except ObjectStoreError:
            if time.monotonic() > deadline:
                raise
        time.sleep(1.0)


def _rank(variable: str, world_size: int) -> int:
    rank = os.environ.get(variable, "")
    if not rank.isascii() or not rank.isdecimal() or not int(rank) < world_size:
        fix = f"set it to this replica's rank, 0 to {world_size - 1}"
        raise ConfigError(f"the environment variable {variable} is {rank!r}, with {world_size} replicas", fix=fix)
    return int(rank)


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("no JSON object")
    return found


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("no whole number of at least 1")
    return int(text)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="replica_entrypoint", description="Run one replica.", allow_abbrev=False)
    parser.add_argument("--rendezvous", required=True, metavar="URI", help="the object store that replicas share")
    parser.add_argument("--world-size", required=True, type=_positive, metavar="N")
    parser.add_argument("--trainer-module", default=MEETING[0], metavar="MODULE")
    parser.add_argument("--trainer-fn", default=MEETING[1], metavar="FUNCTION")
    parser.add_argument("--trainer-kwargs-json", default={}, type=_object, metavar="JSON", help="its arguments by name")
    parser.add_argument(
        "--rank-env", default=RANK_ENV, metavar="VARIABLE", help="where the rank is, from 0 (default: %(default)s)"
    )
    parser.add_argument("--job", default="job", help="where in the store log and result are kept")
    parser.add_argument("--timeout-s", default=DEFAULT_TIMEOUT_S, type=float)
    parser.add_argument("--log-interval-s", default=5.0, type=float)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
