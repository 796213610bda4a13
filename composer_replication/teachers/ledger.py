"""Every call ever made to a teacher, in one SQLite file: the cache, the record of money and the log from which a replay resumes.

A call is a row. It is `open` while it is in progress, with the most it can cost reserved. It ends `paid`, at a cost that is
known, or `held`, because it may be billed at an unknown price: it was sent and brought no answer, its reply named an impossible
price, or the process that made it died. Then it counts with what such calls usually cost at most (`habits`), where that is known,
and else with its reservation. A call that cannot have been billed leaves no row. What is held stays so until the provider's bill
is read (`Ledger.reconcile`). A question without an answer may be asked again, which is another call.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from composer_replication.types.errors import StorageError

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_FORMAT = 3
_SCHEMA = """
CREATE TABLE IF NOT EXISTS calls (
    call_id TEXT PRIMARY KEY,
    key TEXT NOT NULL,
    teacher TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'paid', 'held')),
    usd REAL NOT NULL,
    answer TEXT,
    note TEXT NOT NULL,
    unix_s REAL NOT NULL,
    most REAL,
    likely REAL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS one_answer ON calls (key) WHERE answer IS NOT NULL OR status = 'open';
"""
_FROM_FORMAT_1 = """
INSERT INTO calls SELECT
    lower(hex(randomblob(16))), substr(key, 1, 64), teacher, iif(answer IS NULL OR instr(key, ' '), 'held', 'paid'), usd,
    iif(instr(key, ' '), NULL, answer), '', unix_s, NULL, NULL
FROM answers;
DROP TABLE answers;
"""
_FROM_FORMAT_2 = "ALTER TABLE calls ADD COLUMN most REAL; ALTER TABLE calls ADD COLUMN likely REAL;"
AT_RISK = 0.05
"""Share of a cap that may be held for calls that a run left behind when it ended. Half of what is left of it may be in progress
at a time, or one call, so that a run that is killed again and again leaves no more than this behind, and one call each time."""
_LEAST_AT_RISK = 0.01
"""The part of it that is left for the next calls however much is held: what is held counts until a bill is read."""
STOPPED = "the run stopped waiting for it"
"""Reason of a call that is held because the run ended before it."""
_KILLED = "the run ended while the call was under way"


class AskedAlreadyError(Exception):
    """A call under this key is in progress, or has brought an answer."""


def request_key(*, endpoint: str, request: Mapping[str, Any], sample: int) -> str:
    """Return the SHA-256 over canonical JSON of everything an answer depends on: endpoint, model, messages, tools, parameters,
    sample."""
    canonical = _CANONICAL.encode({"endpoint": endpoint, "request": request, "sample": sample})
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """Changes made by a provider's bill."""

    billed: int
    """Held calls that the bill lists: they are paid now, at its price."""
    free: int
    """Held calls that it does not list: they cost nothing."""
    corrected: int
    """Paid calls whose price was another one on the bill."""
    unknown: int
    """Calls on the bill that this ledger did not make."""


class Ledger(AbstractContextManager["Ledger"]):
    """One process at a time may hold a ledger; within it, threads and coroutines share one object.

    Calls that were in progress when the last holder died are held from now on: the endpoint may have answered and billed
    them.

    Args:
        path: the SQLite file, made when missing; None for a ledger in memory, which nothing survives.

    Raises:
        StorageError: the file cannot be written, is not a ledger, or is held by another process.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._mutex = threading.Lock()
        self._open_usd: dict[str, float] = {}
        self._open_likely: dict[str, float] = {}
        self._lock_fd: int | None = None
        if self.path is not None:
            self._lock_fd = _take_lock(self.path.resolve())  # a link to the file is the file
        try:
            self._db = self._open()
            self._committed_usd, self._left_usd = self.spent_usd, self._left_behind()
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
                if found not in (0, 1, 2, _FORMAT):
                    raise StorageError(f"{self.path} is a ledger of format {found}", fix="use another file for this version")
                converted = {1: _FROM_FORMAT_1, 2: _FROM_FORMAT_2}.get(found, "")
                db.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}{converted}PRAGMA user_version = {_FORMAT};COMMIT;")
                ended = "UPDATE calls SET status = 'held', usd = coalesce(likely, usd), note = ? WHERE status = 'open'"
                db.execute(ended, (_KILLED,))
        except StorageError:
            db.close()
            raise
        return db

    # --- calls ----------------------------------------------------------------------------------------------------------

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the answer bought under `key`, or None."""
        row = self._query("SELECT answer FROM calls WHERE key = ? AND (answer IS NOT NULL OR status = 'open')", key)
        if row is None or row[0] is None:
            return None
        answer: dict[str, Any] = json.loads(row[0])
        return answer

    def reserve(
        self, key: str, *, teacher: str, usd: float, cap_usd: float | None, likely_usd: float | None = None
    ) -> str | None:
        """Reserve `usd`, the most it can cost, for a call about to be made, and name the call. None, with nothing reserved, when
        it is not admitted.

        Args:
            likely_usd: see `admits`; what is held for the call if this process dies. None for all that is reserved.

        Raises:
            AskedAlreadyError: a call under the key is in progress or has brought an answer.
        """
        call_id = uuid.uuid4().hex
        with self._mutex, self._storage_errors():
            if not self.admits(usd, cap_usd, likely_usd=likely_usd):
                return None
            row = (call_id, key, teacher, usd, time.time(), usd, likely_usd)
            try:
                self._db.execute("INSERT INTO calls VALUES (?, ?, ?, 'open', ?, NULL, '', ?, ?, ?)", row)
            except sqlite3.IntegrityError as taken:
                raise AskedAlreadyError(key) from taken
            self._open_usd[call_id] = usd
            self._open_likely[call_id] = usd if likely_usd is None else likely_usd
            self._committed_usd += usd
            return call_id

    def admits(self, usd: float, cap_usd: float | None, *, likely_usd: float | None = None) -> bool:
        """Return whether `usd` could be reserved at this moment: with everything spent and held it is within the cap, and, where
        `likely_usd` is given, what would be held if this process died now is no more than `AT_RISK` allows."""
        if cap_usd is None:
            return True
        if not self._committed_usd + usd <= cap_usd:
            return False
        if not likely_usd or not self._open_usd:
            return True
        room = max(AT_RISK * cap_usd - self._left_usd, _LEAST_AT_RISK * cap_usd) / 2
        return sum(self._open_likely.values()) + likely_usd <= room

    def settle(self, call_id: str, *, usd: float, answer: Mapping[str, Any], doubt: str = "") -> None:
        """End a call that brought an answer, at its real cost.

        Args:
            doubt: why `usd` may not be what is billed: the amount is held.

        Raises:
            ValueError: no such call is in progress.
        """
        status, record = "held" if doubt else "paid", json.dumps(answer)
        with self._mutex, self._storage_errors():
            reserved = self._under_way(call_id)
            self._db.execute(
                "UPDATE calls SET status = ?, usd = ?, answer = ?, note = ?, unix_s = ? WHERE call_id = ?",
                (status, usd, record, doubt, time.time(), call_id),
            )
            self._end(call_id)
            self._committed_usd += usd - reserved

    def hold(self, call_id: str, *, reason: str, usd: float | None = None) -> None:
        """End a call that may be billed and brought no answer.

        Args:
            usd: what is held for it, at most its reservation; None for all of that.

        Raises:
            ValueError: no such call is in progress.
        """
        with self._mutex, self._storage_errors():
            reserved = self._under_way(call_id)
            held = reserved if usd is None else min(usd, reserved)
            self._db.execute("UPDATE calls SET status = 'held', usd = ?, note = ? WHERE call_id = ?", (held, reason, call_id))
            self._end(call_id)
            self._committed_usd += held - reserved
            self._left_usd += held if reason == STOPPED else 0.0

    def release(self, call_id: str) -> None:
        """Forget a call that cannot have been billed. Raises ValueError as `settle`."""
        with self._mutex, self._storage_errors():
            reserved = self._under_way(call_id)
            self._db.execute("DELETE FROM calls WHERE call_id = ?", (call_id,))
            self._end(call_id)
            self._committed_usd -= reserved

    def reserved_for(self, call_id: str) -> float:
        """Return what is reserved for a call in progress. Raises ValueError as `settle`."""
        return self._under_way(call_id)

    def is_open(self, call_id: str) -> bool:
        """Return whether a call is in progress."""
        return call_id in self._open_usd

    @property
    def any_open(self) -> bool:
        """True when any call is in progress."""
        return bool(self._open_usd)

    def shares(self, teacher: str, count: int) -> list[float]:
        """Return what the teacher's last paid answers cost, each as a share of the most it could cost, the newest last."""
        paid = "teacher = ? AND status = 'paid' AND answer IS NOT NULL AND most > 0"
        query = f"SELECT usd / most FROM calls WHERE {paid} ORDER BY unix_s DESC LIMIT ?"
        with self._mutex, self._storage_errors():
            return [share for (share,) in self._db.execute(query, (teacher, count))][::-1]

    def _end(self, call_id: str) -> None:
        del self._open_usd[call_id], self._open_likely[call_id]

    def _under_way(self, call_id: str) -> float:
        if call_id not in self._open_usd:
            raise ValueError(f"no call {call_id} is under way")
        return self._open_usd[call_id]

    def reconcile(self, bill: Mapping[str, float]) -> Reconciled:
        """Replace what was held by the provider's bill.

        Args:
            bill: USD by call id, of every call that was billed since the ledger was begun. A held call that it does not list
                was not billed. What it says of a paid call replaces what the reply said.

        Raises:
            ValueError: calls are in progress, so that no bill can be complete.
        """
        with self._mutex, self._storage_errors():
            if self._open_usd:
                raise ValueError(f"{len(self._open_usd)} calls are under way")
            rows = self._db.execute("SELECT call_id, status, usd FROM calls").fetchall()
            held = {call_id for call_id, status, _ in rows if status == "held"}
            paid = {call_id: usd for call_id, status, usd in rows if status == "paid"}
            changed = {i: bill.get(i, 0.0) for i in held} | {i: bill[i] for i, usd in paid.items() if bill.get(i, usd) != usd}
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                settled = [(usd, call_id) for call_id, usd in changed.items()]
                self._db.executemany("UPDATE calls SET status = 'paid', usd = ? WHERE call_id = ?", settled)
        self._committed_usd, self._left_usd = self.spent_usd, self._left_behind()
        billed = len(held & bill.keys())
        unknown = len(bill.keys() - held - paid.keys())
        return Reconciled(billed=billed, free=len(held) - billed, corrected=len(changed) - len(held), unknown=unknown)

    # --- money ----------------------------------------------------------------------------------------------------------

    @property
    def spent_usd(self) -> float:
        """Everything that counts towards a cap and is no longer in progress: paid and held amounts, in USD."""
        return self._sum("paid", "held")

    @property
    def held_usd(self) -> float:
        """The part of `spent_usd` that may not be billed."""
        return self._sum("held", "held")

    @property
    def reserved_usd(self) -> float:
        """USD reserved for calls in progress."""
        return self._sum("open", "open")

    def spent_by_teacher(self) -> dict[str, float]:
        """Return the parts of `spent_usd` by teacher's name."""
        return self._by_teacher("paid", "held")

    def held_by_teacher(self) -> dict[str, float]:
        """Return the parts of `held_usd` by teacher's name."""
        return self._by_teacher("held", "held")

    @property
    def num_answers(self) -> int:
        """Number of answers bought."""
        row = self._query("SELECT COUNT(*) FROM calls WHERE answer IS NOT NULL")
        return int(row[0]) if row else 0

    def _left_behind(self) -> float:
        """Return USD held for calls that a run left behind when it ended."""
        row = self._query("SELECT SUM(usd) FROM calls WHERE status = 'held' AND note IN (?, ?)", _KILLED, STOPPED)
        return float(row[0] or 0.0) if row else 0.0

    def _sum(self, *statuses: str) -> float:
        return sum(self._by_teacher(*statuses).values())

    def _by_teacher(self, *statuses: str) -> dict[str, float]:
        query = "SELECT teacher, SUM(usd) FROM calls WHERE status IN (?, ?) GROUP BY teacher ORDER BY teacher"
        with self._mutex, self._storage_errors():
            return dict(self._db.execute(query, statuses).fetchall())

    # --- the file -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the file; closing twice is harmless."""
        with self._mutex:
            self._db.close()
        self._unlock()

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
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise
        except sqlite3.DatabaseError as error:
            raise StorageError(
                f"the ledger {self.path} cannot be used: {error}", fix="check the disk, or name another file for the ledger"
            ) from error


def _take_lock(path: Path) -> int:
    """Take an exclusive lock on `<path>.lock`; the kernel frees it however the process ends."""
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
