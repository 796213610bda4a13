"""The file of a ledger: its format, those before it, and the lock by which one process holds it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer_replication.types.errors import StorageError

_FORMAT = 4
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
    likely REAL,
    prompt_usd REAL,
    answer_usd REAL,
    follows INTEGER,
    tokens_per_byte REAL,
    answer_share REAL,
    price_share REAL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS one_answer ON calls (key) WHERE answer IS NOT NULL OR status = 'open';
"""
_INDICES = """
CREATE INDEX IF NOT EXISTS calls_by_key ON calls (key);
CREATE INDEX IF NOT EXISTS lost_calls ON calls (teacher) WHERE status = 'held' AND answer IS NULL;
"""
_TO_FORMAT_2 = """
INSERT INTO calls (call_id, key, teacher, status, usd, answer, note, unix_s) SELECT
    lower(hex(randomblob(16))), substr(key, 1, 64), teacher, iif(answer IS NULL OR instr(key, ' '), 'held', 'paid'), usd,
    iif(instr(key, ' '), NULL, answer), '', unix_s
FROM answers;
DROP TABLE answers;
"""
_TO_FORMAT_3 = "ALTER TABLE calls ADD COLUMN most REAL; ALTER TABLE calls ADD COLUMN likely REAL;"
_TO_FORMAT_4 = "".join(
    f"ALTER TABLE calls ADD COLUMN {column};"
    for column in (
        "prompt_usd REAL",
        "answer_usd REAL",
        "follows INTEGER",
        "tokens_per_byte REAL",
        "answer_share REAL",
        "price_share REAL",
    )
)
_CONVERSIONS = {0: "", 1: _TO_FORMAT_2, 2: _TO_FORMAT_3 + _TO_FORMAT_4, 3: _TO_FORMAT_4, _FORMAT: ""}
"""Statements for a file of each format, after `_SCHEMA` has made the table where there was none, with all its columns."""


def open_calls(path: Path | None) -> sqlite3.Connection:
    """Open the table of calls, made or converted where needed; in memory without a path.

    Raises:
        StorageError: the file cannot be written or is not a ledger.
    """
    with storage_errors(path):
        db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        with storage_errors(path):
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found not in _CONVERSIONS:
                raise StorageError(f"{path} is a ledger of format {found}", fix="use another file for this version")
            statements = f"{_SCHEMA}{_CONVERSIONS[found]}{_INDICES}PRAGMA user_version = {_FORMAT};"
            db.executescript(f"BEGIN IMMEDIATE;{statements}COMMIT;")
    except StorageError:
        db.close()
        raise
    return db


@contextmanager
def storage_errors(path: Path | None) -> Iterator[None]:
    """Raise StorageError in place of SQLite's errors about the file; errors of the program stay what they are."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except sqlite3.DatabaseError as error:
        raise StorageError(
            f"the ledger {path} cannot be used: {error}", fix="check the disk, or name another file for the ledger"
        ) from error


def take_lock(path: Path) -> int:
    """Take an exclusive lock on `<path>.lock`, and return its file descriptor; the kernel frees it however the process ends.

    Raises:
        StorageError: the file cannot be made, or another process has the lock.
    """
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
