"""Every answer ever bought, in one SQLite file: the cache, the record of money and the log from which a replay resumes.

Money is reserved before a call and settled after it. A process that dies in between leaves a reservation and no answer; the
next one to open the ledger releases it, so the answer is bought once and counted once. A call that was sent and brought no answer
may have been billed: it is written off, which books the reservation and leaves the question to be asked again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from composer_replication.errors import StorageError

__all__ = ["Ledger", "request_key"]

_FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY,
    teacher TEXT NOT NULL,
    usd REAL NOT NULL,
    answer TEXT,
    unix_s REAL NOT NULL
) STRICT
"""
# `answer` is NULL while the call is under way, and `usd` is then the amount reserved. What was written off has a key of its own.
_WRITTEN_OFF = " unanswered "


def request_key(*, endpoint: str, request: Mapping[str, Any], sample: int) -> str:
    """SHA-256 over canonical JSON of everything an answer depends on: endpoint, model, messages, tools, parameters, sample."""
    canonical = json.dumps({"endpoint": endpoint, "request": request, "sample": sample}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class Ledger:
    """One process at a time may hold a ledger; within it, threads and coroutines share one object.

    Args:
        path: the SQLite file, made when missing; None for a ledger in memory, which nothing survives.

    Raises:
        StorageError: the file cannot be written, is no ledger, or is held by another process.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._mutex = threading.Lock()
        self._lock_fd: int | None = None
        if self.path is not None:
            self._lock_fd = _take_lock(self.path)
        try:
            self._db = self._open()
            self._committed_usd = self.spent_usd
        except BaseException:
            self._unlock()
            raise

    def _open(self) -> sqlite3.Connection:
        with self._storage_errors():
            db = sqlite3.connect(self.path or ":memory:", isolation_level=None, check_same_thread=False)
        try:
            with self._storage_errors():
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
                found = db.execute("PRAGMA user_version").fetchone()[0]
                if found not in (0, _FORMAT):
                    raise StorageError(f"{self.path} is a ledger of format {found}", fix="use another file for this version")
                db.execute(_SCHEMA)
                db.execute(f"PRAGMA user_version = {_FORMAT}")
                db.execute("DELETE FROM answers WHERE answer IS NULL")
        except StorageError:
            db.close()
            raise
        return db

    # --- answers --------------------------------------------------------------------------------------------------------

    def find(self, key: str) -> dict[str, Any] | None:
        """The settled answer under `key`, or None."""
        row = self._query("SELECT answer FROM answers WHERE key = ? AND answer IS NOT NULL", key)
        if row is None:
            return None
        answer: dict[str, Any] = json.loads(row[0])
        return answer

    def reserve(self, key: str, *, teacher: str, usd: float, cap_usd: float | None) -> bool:
        """Hold `usd` for a call about to be made. False, and nothing held, when everything spent and held would exceed the cap.

        Raises:
            sqlite3.IntegrityError: the key is reserved or settled already.
        """
        with self._mutex, self._storage_errors():
            if cap_usd is not None and self._committed_usd + usd > cap_usd:
                return False
            self._db.execute("INSERT INTO answers VALUES (?, ?, ?, NULL, ?)", (key, teacher, usd, time.time()))
            self._committed_usd += usd
            return True

    def settle(self, key: str, *, usd: float, answer: Mapping[str, Any]) -> None:
        """Turn a reservation into a bought answer at its real cost. Raises ValueError when nothing is reserved under the key."""
        with self._mutex, self._storage_errors():
            held = self._reserved(key)
            record = (usd, json.dumps(answer), time.time(), key)
            done = self._db.execute("UPDATE answers SET usd = ?, answer = ?, unix_s = ? WHERE key = ? AND answer IS NULL", record)
            if done.rowcount != 1:
                raise ValueError(f"nothing is reserved under {key}")
            self._committed_usd += usd - held

    def write_off(self, key: str, *, reason: str) -> None:
        """Book a reservation in full for a call that brought no answer: the money counts, and the key is free again.

        Raises ValueError when nothing is reserved under the key.
        """
        with self._mutex, self._storage_errors():
            earlier = self._db.execute("SELECT COUNT(*) FROM answers WHERE instr(key, ?) = 1", (key + _WRITTEN_OFF,)).fetchone()
            record = (f"{key}{_WRITTEN_OFF}{earlier[0]}", json.dumps({"error": reason}), time.time(), key)
            done = self._db.execute("UPDATE answers SET key = ?, answer = ?, unix_s = ? WHERE key = ? AND answer IS NULL", record)
            if done.rowcount != 1:
                raise ValueError(f"nothing is reserved under {key}")

    def release(self, key: str) -> None:
        """Give a reservation back: the call was not answered. A settled answer stays."""
        with self._mutex, self._storage_errors():
            held = self._reserved(key)
            self._db.execute("DELETE FROM answers WHERE key = ? AND answer IS NULL", (key,))
            self._committed_usd -= held

    def _reserved(self, key: str) -> float:
        row = self._db.execute("SELECT usd FROM answers WHERE key = ? AND answer IS NULL", (key,)).fetchone()
        return 0.0 if row is None else float(row[0])

    # --- money ----------------------------------------------------------------------------------------------------------

    @property
    def spent_usd(self) -> float:
        """Cost of all settled answers, and what was written off."""
        return self._sum("answer IS NOT NULL")

    @property
    def unanswered_usd(self) -> float:
        """The part of `spent_usd` that was written off."""
        return self._sum("answer IS NOT NULL AND instr(key, ?)", _WRITTEN_OFF)

    @property
    def reserved_usd(self) -> float:
        """Held for calls under way."""
        return self._sum("answer IS NULL")

    def spent_by_teacher(self) -> dict[str, float]:
        """The parts of `spent_usd` by teacher's name."""
        with self._mutex, self._storage_errors():
            rows = self._db.execute(
                "SELECT teacher, SUM(usd) FROM answers WHERE answer IS NOT NULL GROUP BY teacher ORDER BY teacher"
            )
            return dict(rows.fetchall())

    @property
    def num_answers(self) -> int:
        """Number of settled answers."""
        row = self._query("SELECT COUNT(*) FROM answers WHERE answer IS NOT NULL AND NOT instr(key, ?)", _WRITTEN_OFF)
        return int(row[0]) if row else 0

    def _sum(self, condition: str, *values: str) -> float:
        row = self._query(f"SELECT COALESCE(SUM(usd), 0.0) FROM answers WHERE {condition}", *values)
        return float(row[0]) if row else 0.0

    # --- the file -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the file; closing twice is harmless."""
        with self._mutex:
            self._db.close()
        self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _query(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        with self._mutex, self._storage_errors():
            row: tuple[Any, ...] | None = self._db.execute(sql, values).fetchone()
            return row

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
            if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise
            raise StorageError(
                f"the ledger {self.path} cannot be used: {error}", fix="check the disk, or name another file for the ledger"
            ) from error


def _take_lock(path: Path) -> int:
    """Exclusive lock on `<path>.lock`; the kernel frees it however the process ends."""
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(
            f"the ledger {path} cannot be used: {error.strerror}", fix="name a folder that can be written"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise StorageError(f"the ledger {path} is in use by another run", fix="wait for it, or name another file") from error
    return fd
