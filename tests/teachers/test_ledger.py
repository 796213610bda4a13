from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from composer_replication.errors import StorageError
from composer_replication.teachers import Ledger, request_key


def test_key_depends_on_everything_and_not_on_order():
    base = {"model": "m", "messages": [{"role": "user", "content": "é"}], "max_tokens": 5}
    key = request_key(endpoint="http://a", request=base, sample=0)
    assert key == request_key(endpoint="http://a", request=dict(reversed(base.items())), sample=0)
    others = [
        request_key(endpoint="http://b", request=base, sample=0),
        request_key(endpoint="http://a", request=base, sample=1),
        request_key(endpoint="http://a", request={**base, "max_tokens": 6}, sample=0),
        request_key(endpoint="http://a", request={**base, "tools": []}, sample=0),
    ]
    assert len({key, *others}) == 5


def test_reserve_settle_find(tmp_path):
    with Ledger(tmp_path / "deep" / "l.sqlite") as ledger:
        assert ledger.reserve("k", teacher="t", usd=0.4, cap_usd=1.0)
        assert (ledger.spent_usd, ledger.reserved_usd, ledger.find("k"), ledger.num_answers) == (0.0, 0.4, None, 0)
        ledger.settle("k", usd=0.1, answer={"content": "😀 é"})
        ledger.release("k")
        assert (ledger.spent_usd, ledger.reserved_usd, ledger.find("k"), ledger.num_answers) == (0.1, 0.0, {"content": "😀 é"}, 1)
        with pytest.raises(sqlite3.IntegrityError):
            ledger.reserve("k", teacher="t", usd=0.1, cap_usd=None)
    with Ledger(tmp_path / "deep" / "l.sqlite") as ledger:
        assert ledger.find("k") == {"content": "😀 é"}
        assert ledger.spent_by_teacher() == {"t": 0.1}


def test_reservations_count_towards_the_cap():
    with Ledger() as ledger:
        assert ledger.reserve("a", teacher="t", usd=0.6, cap_usd=1.0)
        assert not ledger.reserve("b", teacher="t", usd=0.6, cap_usd=1.0)
        ledger.settle("a", usd=0.1, answer={})
        assert ledger.reserve("b", teacher="t", usd=0.6, cap_usd=1.0)
        ledger.release("b")
        assert (ledger.spent_usd, ledger.reserved_usd) == (0.1, 0.0)


def test_only_what_is_reserved_can_be_settled():
    with Ledger() as ledger:
        ledger.release("a")
        with pytest.raises(ValueError, match="nothing is reserved under a"):
            ledger.settle("a", usd=1.0, answer={})
        assert ledger.reserve("b", teacher="t", usd=1.0, cap_usd=1.0)


def test_what_is_written_off_stays_spent_and_may_be_asked_again(tmp_path):
    path = tmp_path / "l.sqlite"
    for attempt in (1, 2):
        with Ledger(path) as ledger:
            assert ledger.reserve("a", teacher="t", usd=0.25, cap_usd=1.0)
            ledger.write_off("a", reason="no answer within 2 s")
            ledger.release("a")
            assert ledger.find("a") is None
            with pytest.raises(ValueError, match="nothing is reserved under a"):
                ledger.write_off("a", reason="again")
        with Ledger(path) as ledger:
            assert (ledger.spent_usd, ledger.unanswered_usd, ledger.reserved_usd) == (0.25 * attempt, 0.25 * attempt, 0.0)
            assert (ledger.num_answers, ledger.spent_by_teacher()) == (0, {"t": 0.25 * attempt})
            assert not ledger.reserve("b", teacher="t", usd=0.9, cap_usd=1.0)


def test_what_earlier_runs_paid_counts_towards_the_cap(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.reserve("a", teacher="t", usd=0.6, cap_usd=1.0)
        ledger.settle("a", usd=0.6, answer={})
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert not ledger.reserve("b", teacher="t", usd=0.6, cap_usd=1.0)
        assert ledger.reserve("b", teacher="t", usd=0.4, cap_usd=1.0)


def test_threads_never_reserve_past_the_cap():
    with Ledger() as ledger:
        won = []

        def work(i):
            won.extend(n for n in range(20) if ledger.reserve(f"{i}/{n}", teacher="t", usd=1.0, cap_usd=50.0))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(won) == 50
        assert ledger.reserved_usd == 50.0


HOLDER = """
import sys, time
from composer_replication.teachers import Ledger
ledger = Ledger(sys.argv[1])
ledger.reserve("done", teacher="t", usd=1.0, cap_usd=None)
ledger.settle("done", usd=0.25, answer={"content": "kept"})
ledger.reserve("lost", teacher="t", usd=1.0, cap_usd=None)
sys.stdout.write("ready\\n"); sys.stdout.flush()
time.sleep(600)
"""


def test_killed_holder_leaves_its_answers_and_no_reservation(tmp_path):
    path = tmp_path / "l.sqlite"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(StorageError, match="in use by another run"):
            Ledger(path)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with Ledger(path) as ledger:
        assert ledger.find("done") == {"content": "kept"}
        assert (ledger.spent_usd, ledger.reserved_usd, ledger.num_answers) == (0.25, 0.0, 1)
        assert ledger.reserve("lost", teacher="t", usd=1.0, cap_usd=2.0)


def test_what_is_no_ledger_is_named(tmp_path):
    path = tmp_path / "notes.sqlite"
    path.write_text(json.dumps({"not": "a database"}) * 50)
    with pytest.raises(StorageError, match=r"notes\.sqlite"):
        Ledger(path)
    newer = tmp_path / "newer.sqlite"
    db = sqlite3.connect(newer)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StorageError, match="format 99"):
        Ledger(newer)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used"):
        Ledger(tmp_path / "file" / "l.sqlite")
