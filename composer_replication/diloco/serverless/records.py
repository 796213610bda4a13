"""A replica's records in the store: a log that grows while it runs, and its outcome.

replicas/JOB/00001/started.json       where it runs
replicas/JOB/00001/log/00000000       its output in parts; the last one is rewritten until it is full
replicas/JOB/00001/outcome.json       how it ended; written once
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from composer_replication.diloco.serverless.protocol import ReplicaStatus
from composer_replication.diloco.store import Store, open_store
from composer_replication.types.errors import ObjectStoreError

PART_BYTES = 256 << 10
"""Size of one part of a log: at most this much is uploaded again with every few lines of a slow one."""


@dataclass(frozen=True)
class ReplicaOutcome:
    """The outcome of a replica."""

    status: ReplicaStatus
    exit_code: int
    seconds: float
    value: Any = None
    """Return value of its function."""
    error: str = ""
    """Why it ended otherwise: one line."""
    traceback: str = ""
    """Traceback of the exception, if there was one."""


class Records:
    """One replica's objects."""

    def __init__(self, store: Store, job: str, rank: int) -> None:
        self._store = store.at(f"replicas/{job}/{rank:05d}")

    @classmethod
    def of(cls, metadata: Mapping[str, str], rank: int) -> Records:
        """Open the records that a handle names. Raises ConfigError and ObjectStoreError."""
        return cls(open_store(metadata["rendezvous_uri"]), metadata["job"], rank)

    def start(self, facts: Mapping[str, Any]) -> None:
        """Record that the replica runs. Raises ObjectStoreError."""
        self._store.put("started.json", json.dumps(dict(facts)).encode())

    def put_log(self, part: int, data: bytes) -> None:
        """Write a part of the log. Raises ObjectStoreError."""
        self._store.put(f"log/{part:08d}", data)

    def log(self, most: int | None = None) -> str:
        """Return the last `most` bytes of the log; all of it without. Raises ObjectStoreError."""
        parts: list[bytes] = []
        for key in reversed(self._store.list("log")):
            parts.insert(0, self._store.get(key) or b"")
            if most is not None and sum(map(len, parts)) >= most:
                break
        data = b"".join(parts)
        return (data if most is None else data[-most:]).decode("utf-8", "replace")

    def end(self, outcome: ReplicaOutcome) -> None:
        """Say how it ended. Raises ObjectStoreError."""
        self._store.put("outcome.json", json.dumps(asdict(outcome)).encode())

    def outcome(self) -> ReplicaOutcome | None:
        """Return its outcome; None where it has not reported one.

        Raises:
            ObjectStoreError: the store does not answer, or has something else in this place.
        """
        found = self._store.get("outcome.json")
        if found is None:
            return None
        try:
            facts = json.loads(found)
            return ReplicaOutcome(**{**facts, "status": ReplicaStatus(facts["status"])})
        except (ValueError, TypeError, KeyError) as error:
            fix = "let every launch have a prefix that nothing else writes under"
            raise ObjectStoreError(
                f"{self._store.where('outcome.json')} is not an outcome of a replica: {error}", fix=fix
            ) from error


class LogWriter:
    """Uploads what it is fed to the store every `interval_s` seconds, from a separate thread.

    A store that does not answer never stops the replica: what it did not take is put again with what came since.
    """

    def __init__(self, records: Records, interval_s: float) -> None:
        self._records = records
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._part, self._data, self._fresh = 0, b"", False
        self._closing = threading.Event()
        self.fault: ObjectStoreError | None = None
        """Why the last put failed; None when it did not."""
        self._thread = threading.Thread(target=self._run, name="replica-log", daemon=True)
        self._thread.start()

    def feed(self, data: bytes) -> None:
        """Take output."""
        with self._lock:
            self._data += data
            self._fresh = True

    def close(self) -> None:
        """Upload the rest."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        while True:
            with self._lock:
                if not self._fresh:
                    return
                data, self._fresh = self._data[:PART_BYTES], False
            try:
                self._records.put_log(self._part, data)
                self.fault = None
            except ObjectStoreError as error:
                self.fault = error
                with self._lock:
                    self._fresh = True
                return
            if len(data) == PART_BYTES:
                with self._lock:
                    self._part, self._data = self._part + 1, self._data[PART_BYTES:]
                    self._fresh = bool(self._data)
