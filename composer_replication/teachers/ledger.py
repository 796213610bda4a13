"""Every call ever made to a teacher, in one SQLite file: the cache, the record of money and the log from which a replay resumes.

A call is a row. It is `open` while it is in progress, with the most it can cost reserved. It ends `paid`, at a cost that is
known, or `held`, because it may be billed at an unknown price: it was sent and brought no answer, its reply named an impossible
price, or the process that made it died. A call that cannot have been billed leaves no row. What is held stays so until the
provider's bill is read (`Ledger.reconcile`). A question without an answer may be asked again, which is another call.

**Which quantity bounds what.** A call is admitted when everything paid, everything held, and the most that the calls in progress
and this one can cost are within the cap. So what is *paid* never exceeds the cap, whatever the calls in progress turn out to
cost, unless a provider charges more than the most. A lost call is held at an estimate (`habits`), not at the most, and at a
better one as more calls of its teacher are paid; its prompt's tokens are known exactly when its question has an answer. So the
provider's *bill* is at most what is paid and held, unless the lost calls, taken together, were dearer than their estimates, and
then it can exceed the cap: by the difference, which is less than the sum of `most` over the lost calls.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from composer_replication.teachers.habits import FEWEST, RECENT, CallParts, Habits, Used
from composer_replication.teachers.ledger_file import open_calls, storage_errors, take_lock

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
AT_RISK = 0.05
"""Share of a cap that may be held for calls that runs left behind when they ended. Half of what is left of it may be in progress
at a time, or one call."""
LEAST_AT_RISK = 0.01
"""Share of it that may be in progress at a time however much is held, as what is held counts until a bill is read. Three kills
leave at most 2.5, 1.25 and 1 % of the cap behind, and each further one 1 %, where no single call costs more."""
CACHED_S = 240.0
"""For so many seconds a provider keeps a prompt in its cache: five minutes after its last use, as Anthropic and OpenAI say on
their pages on prompt caching, less one for a call that waits in line."""
STOPPED = "the run stopped waiting for it"
"""Reason of a call that is held because the run ended before it."""
_KILLED = "the run ended while the call was under way"
_LEFT_BEHIND = "note IN (?, ?)"
_USED = """
SELECT tokens_per_byte, answer_share, price_share FROM calls
WHERE teacher = ? AND status = 'paid' AND answer IS NOT NULL AND tokens_per_byte IS NOT NULL ORDER BY unix_s DESC LIMIT ?
"""
_LOST = f"""
SELECT call_id, usd, most, prompt_usd, answer_usd, follows, {_LEFT_BEHIND},
    (SELECT tokens_per_byte FROM calls AS answered WHERE answered.key = lost.key AND answered.answer IS NOT NULL)
FROM calls AS lost WHERE teacher = ? AND status = 'held' AND answer IS NULL AND prompt_usd IS NOT NULL
"""


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


class _OpenCall(NamedTuple):
    teacher: str
    usd: float
    """Reserved."""
    likely_usd: float
    """Held for it if this process dies."""


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
        self._open: dict[str, _OpenCall] = {}
        self._habits: dict[str, Habits] = {}
        self._lock_fd: int | None = None
        if self.path is not None:
            self._lock_fd = take_lock(self.path.resolve())  # a link to the file is the file
        try:
            self._db = open_calls(self.path)
            try:
                self._take_over()
            except BaseException:
                self._db.close()
                raise
        except BaseException:
            self._unlock()
            raise

    def _take_over(self) -> None:
        """Hold what the last holder left open, and estimate every lost call anew."""
        self._committed_usd = self._left_usd = 0.0
        with self._mutex, storage_errors(self.path):
            ended = "UPDATE calls SET status = 'held', usd = coalesce(likely, usd), note = ? WHERE status = 'open'"
            self._db.execute(ended, (_KILLED,))
            lost = "SELECT DISTINCT teacher FROM calls WHERE status = 'held' AND answer IS NULL"
            for (teacher,) in self._db.execute(lost).fetchall():
                self._estimate_lost(teacher)
        self._committed_usd, self._left_usd = self.spent_usd, self._left_behind()

    # --- calls ----------------------------------------------------------------------------------------------------------

    def find(self, key: str) -> dict[str, Any] | None:
        """Return the answer bought under `key`, or None."""
        row = self._query("SELECT answer FROM calls WHERE key = ? AND (answer IS NOT NULL OR status = 'open')", key)
        if row is None or row[0] is None:
            return None
        answer: dict[str, Any] = json.loads(row[0])
        return answer

    def reserve(
        self,
        key: str,
        *,
        teacher: str,
        usd: float,
        cap_usd: float | None,
        likely_usd: float | None = None,
        parts: CallParts | None = None,
    ) -> str | None:
        """Reserve `usd`, the most it can cost, for a call about to be made, and name the call. None, with nothing reserved, when
        it is not admitted.

        Args:
            likely_usd: see `admits`; what is held for the call if this process dies. None for all that is reserved.
            parts: what the call is estimated from if it is lost; None for one that is then held as it is.

        Raises:
            AskedAlreadyError: a call under the key is in progress or has brought an answer.
        """
        call_id = uuid.uuid4().hex
        with self._mutex, storage_errors(self.path):
            if not self.admits(usd, cap_usd, likely_usd=likely_usd):
                return None
            columns = "call_id, key, teacher, status, usd, note, unix_s, most, likely, prompt_usd, answer_usd, follows"
            row = (call_id, key, teacher, usd, time.time(), usd, likely_usd, *(parts or (None, None, None)))
            try:
                self._db.execute(f"INSERT INTO calls ({columns}) VALUES (?, ?, ?, 'open', ?, '', ?, ?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError as taken:
                raise AskedAlreadyError(key) from taken
            self._open[call_id] = _OpenCall(teacher, usd, usd if likely_usd is None else likely_usd)
            self._committed_usd += usd
            return call_id

    def admits(self, usd: float, cap_usd: float | None, *, likely_usd: float | None = None) -> bool:
        """Return whether `usd` could be reserved at this moment: with everything spent and held it is within the cap, and, where
        `likely_usd` is given, what would be held if this process died now is no more than `AT_RISK` and `LEAST_AT_RISK` allow."""
        if cap_usd is None:
            return True
        if not self._committed_usd + usd <= cap_usd:
            return False
        if not likely_usd or not self._open:
            return True
        room = max((AT_RISK * cap_usd - self._left_usd) / 2, LEAST_AT_RISK * cap_usd)
        return sum(call.likely_usd for call in [*self._open.values()]) + likely_usd <= room

    def settle(self, call_id: str, *, usd: float, answer: Mapping[str, Any], doubt: str = "", used: Used | None = None) -> None:
        """End a call that brought an answer, at its real cost.

        Args:
            doubt: why `usd` may not be what is billed: the amount is held.
            used: what it says of the teacher's other calls, where there is no doubt; None for nothing.

        Raises:
            ValueError: no such call is in progress.
        """
        status, learnt, record = ("held", None, json.dumps(answer)) if doubt else ("paid", used, json.dumps(answer))
        with self._mutex, storage_errors(self.path):
            call = self._under_way(call_id)
            habits = self._habits_of(call.teacher)
            self._db.execute(
                "UPDATE calls SET status = ?, usd = ?, answer = ?, note = ?, unix_s = ?, tokens_per_byte = ?, answer_share = ?, "
                "price_share = ? WHERE call_id = ?",
                (status, usd, record, doubt, time.time(), *(learnt or (None, None, None)), call_id),
            )
            del self._open[call_id]
            self._committed_usd += usd - call.usd
            if learnt is not None:
                habits.add(learnt)
                if habits.num_seen % FEWEST == 0:
                    self._estimate_lost(call.teacher)

    def hold(self, call_id: str, *, reason: str, usd: float | None = None) -> None:
        """End a call that may be billed and brought no answer.

        Args:
            usd: what is held for it, at most its reservation; None for all of that, whatever is learnt later.

        Raises:
            ValueError: no such call is in progress.
        """
        with self._mutex, storage_errors(self.path):
            reserved = self._under_way(call_id).usd
            held = reserved if usd is None else min(usd, reserved)
            ended = "status = 'held', usd = ?, note = ?, prompt_usd = iif(?, NULL, prompt_usd)"
            self._db.execute(f"UPDATE calls SET {ended} WHERE call_id = ?", (held, reason, usd is None, call_id))
            del self._open[call_id]
            self._committed_usd += held - reserved
            self._left_usd += held if reason == STOPPED else 0.0

    def release(self, call_id: str) -> None:
        """Forget a call that cannot have been billed. Raises ValueError as `settle`."""
        with self._mutex, storage_errors(self.path):
            reserved = self._under_way(call_id).usd
            self._db.execute("DELETE FROM calls WHERE call_id = ?", (call_id,))
            del self._open[call_id]
            self._committed_usd -= reserved

    def is_open(self, call_id: str) -> bool:
        """Return whether a call is in progress."""
        return call_id in self._open

    def sent_lately(self, *keys: str) -> bool:
        """Return whether a call under one of these keys was made within `CACHED_S`, by this process or one before it."""
        marks, since = ", ".join("?" * len(keys)), time.time() - CACHED_S
        return self._query(f"SELECT 1 FROM calls WHERE key IN ({marks}) AND unix_s > ? LIMIT 1", *keys, since) is not None

    @property
    def any_open(self) -> bool:
        """True when any call is in progress."""
        return bool(self._open)

    def _under_way(self, call_id: str) -> _OpenCall:
        if call_id not in self._open:
            raise ValueError(f"no call {call_id} is under way")
        return self._open[call_id]

    def reconcile(self, bill: Mapping[str, float]) -> Reconciled:
        """Replace what was held by the provider's bill.

        Args:
            bill: USD by call id, of every call that was billed since the ledger was begun. A held call that it does not list
                was not billed. What it says of a paid call replaces what the reply said.

        Raises:
            ValueError: calls are in progress, so that no bill can be complete.
        """
        with self._mutex, storage_errors(self.path):
            if self._open:
                raise ValueError(f"{len(self._open)} calls are under way")
            rows = self._db.execute("SELECT call_id, status, usd FROM calls").fetchall()
            held = {call_id for call_id, status, _ in rows if status == "held"}
            paid = {call_id: usd for call_id, status, usd in rows if status == "paid"}
            changed = {i: bill.get(i, 0.0) for i in held} | {i: bill[i] for i, usd in paid.items() if bill.get(i, usd) != usd}
            self._set("status = 'paid', usd = ?", changed)
        self._committed_usd, self._left_usd = self.spent_usd, self._left_behind()
        billed = len(held & bill.keys())
        unknown = len(bill.keys() - held - paid.keys())
        return Reconciled(billed=billed, free=len(held) - billed, corrected=len(changed) - len(held), unknown=unknown)

    # --- estimates ------------------------------------------------------------------------------------------------------

    def habits(self, teacher: str) -> Habits:
        """Return what is known of the teacher's calls; it learns from each that is paid."""
        with self._mutex, storage_errors(self.path):
            return self._habits_of(teacher)

    def _habits_of(self, teacher: str) -> Habits:
        if teacher not in self._habits:
            rows = self._db.execute(_USED, (teacher, RECENT)).fetchall()
            self._habits[teacher] = Habits(Used(*row) for row in reversed(rows))
        return self._habits[teacher]

    def _estimate_lost(self, teacher: str) -> None:
        """Hold the teacher's lost calls at what is known of its calls by now, each at no more than was reserved for it."""
        habits, changed = self._habits_of(teacher), dict[str, float]()
        rows = self._db.execute(_LOST, (_KILLED, STOPPED, teacher)).fetchall()
        for call_id, held, most, prompt_usd, answer_usd, follows, left_behind, tokens_per_byte in rows:
            parts = CallParts(prompt_usd, answer_usd, bool(follows))
            usd = min(most, habits.likely_usd(parts, tokens_per_byte=tokens_per_byte, whole_answer=not left_behind))
            if usd != held:
                changed[call_id] = usd
                self._committed_usd += usd - held
                self._left_usd += usd - held if left_behind else 0.0
        self._set("usd = ?", changed)

    def _set(self, column: str, usd: Mapping[str, float]) -> None:
        """Write amounts by call id, all or none."""
        if usd:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                rows = [(amount, call_id) for call_id, amount in usd.items()]
                self._db.executemany(f"UPDATE calls SET {column} WHERE call_id = ?", rows)

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
        row = self._query(f"SELECT SUM(usd) FROM calls WHERE status = 'held' AND {_LEFT_BEHIND}", _KILLED, STOPPED)
        return float(row[0] or 0.0) if row else 0.0

    def _sum(self, *statuses: str) -> float:
        return sum(self._by_teacher(*statuses).values())

    def _by_teacher(self, *statuses: str) -> dict[str, float]:
        query = "SELECT teacher, SUM(usd) FROM calls WHERE status IN (?, ?) GROUP BY teacher ORDER BY teacher"
        with self._mutex, storage_errors(self.path):
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
        with self._mutex, storage_errors(self.path):
            row: tuple[Any, ...] | None = self._db.execute(sql, values).fetchone()
            return row

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
