from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from composer_replication.teachers import Ledger, Reconciled, request_key
from composer_replication.teachers.ledger import AskedAlreadyError
from composer_replication.types.errors import StorageError


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


def reserve(ledger, key, usd, cap_usd=None):
    call_id = ledger.reserve(key, teacher="t", usd=usd, cap_usd=cap_usd)
    assert call_id is not None
    return call_id


def test_reserve_settle_find(tmp_path):
    with Ledger(tmp_path / "deep" / "l.sqlite") as ledger:
        call_id = reserve(ledger, "k", 0.4, 1.0)
        assert (ledger.spent_usd, ledger.reserved_usd, ledger.find("k"), ledger.num_answers) == (0.0, 0.4, None, 0)
        with pytest.raises(AskedAlreadyError):
            ledger.reserve("k", teacher="t", usd=0.1, cap_usd=None)
        ledger.settle(call_id, usd=0.1, answer={"content": "😀 é"})
        assert (ledger.spent_usd, ledger.reserved_usd, ledger.find("k"), ledger.num_answers) == (0.1, 0.0, {"content": "😀 é"}, 1)
        with pytest.raises(AskedAlreadyError):
            ledger.reserve("k", teacher="t", usd=0.1, cap_usd=None)
    with Ledger(tmp_path / "deep" / "l.sqlite") as ledger:
        assert ledger.find("k") == {"content": "😀 é"}
        assert (ledger.spent_by_teacher(), ledger.held_by_teacher()) == ({"t": 0.1}, {})


def test_reservations_count_towards_the_cap():
    with Ledger() as ledger:
        first = reserve(ledger, "a", 0.6, 1.0)
        assert ledger.admits(0.4, 1.0)
        assert not ledger.admits(0.6, 1.0)
        assert ledger.reserve("b", teacher="t", usd=0.6, cap_usd=1.0) is None
        ledger.settle(first, usd=0.1, answer={})
        ledger.release(reserve(ledger, "b", 0.6, 1.0))
        assert (ledger.spent_usd, ledger.reserved_usd) == (0.1, 0.0)
        assert ledger.admits(0.9, 1.0)


@pytest.mark.parametrize("cap", [float("nan"), -1.0])
def test_a_cap_that_is_no_amount_lets_nothing_through(cap):
    with Ledger() as ledger:
        assert ledger.reserve("a", teacher="t", usd=0.0, cap_usd=cap) is None


def test_only_what_is_under_way_can_end():
    with Ledger() as ledger:
        call_id = reserve(ledger, "a", 1.0)
        assert ledger.is_open(call_id)
        ledger.settle(call_id, usd=1.0, answer={})
        assert not ledger.is_open(call_id)
        for end in (
            lambda: ledger.release(call_id),
            lambda: ledger.hold(call_id, reason="again"),
            lambda: ledger.settle(call_id, usd=2.0, answer={}),
        ):
            with pytest.raises(ValueError, match=f"no call {call_id} is under way"):
                end()
        assert (ledger.spent_usd, ledger.num_answers) == (1.0, 1)


def test_what_is_held_counts_and_may_be_asked_again(tmp_path):
    path = tmp_path / "l.sqlite"
    for attempt in (1, 2):
        with Ledger(path) as ledger:
            ledger.hold(reserve(ledger, "a", 0.25, 1.0), reason="no answer within 2 s")
            assert ledger.find("a") is None
        with Ledger(path) as ledger:
            assert (ledger.spent_usd, ledger.held_usd, ledger.reserved_usd) == (0.25 * attempt, 0.25 * attempt, 0.0)
            assert (ledger.num_answers, ledger.spent_by_teacher()) == (0, {"t": 0.25 * attempt})
            assert ledger.held_by_teacher() == ledger.spent_by_teacher()
            assert not ledger.admits(0.9, 1.0)


def test_an_answer_at_a_doubtful_price_is_held():
    with Ledger() as ledger:
        ledger.settle(reserve(ledger, "a", 0.5), usd=0.5, answer={"content": "kept"}, doubt="it reports $-1")
        assert (ledger.find("a"), ledger.spent_usd, ledger.held_usd) == ({"content": "kept"}, 0.5, 0.5)


def test_a_bill_takes_the_place_of_what_is_held():
    with Ledger() as ledger:
        ids = {}
        for name in ("billed", "free", "answered", "paid", "dearer"):
            ids[name] = reserve(ledger, name, 1.0)
            if name in ("billed", "free"):
                ledger.hold(ids[name], reason="the connection was lost")
            else:
                ledger.settle(ids[name], usd=0.5, answer={}, doubt="no usage" if name == "answered" else "")
        bill = {ids["billed"]: 0.25, ids["answered"]: 0.125, ids["paid"]: 0.5, ids["dearer"]: 0.75, "another's": 9.0}
        open_call = reserve(ledger, "open", 1.0)
        with pytest.raises(ValueError, match="1 calls are under way"):
            ledger.reconcile(bill)
        ledger.release(open_call)
        assert ledger.reconcile(bill) == Reconciled(billed=2, free=1, corrected=1, unknown=1)
        assert (ledger.spent_usd, ledger.held_usd, ledger.num_answers) == (1.625, 0.0, 3)
        assert ledger.reconcile(bill) == Reconciled(billed=0, free=0, corrected=0, unknown=1)
        assert (ledger.admits(0.375, 2.0), ledger.admits(0.376, 2.0)) == (True, False)
        reserve(ledger, "free", 0.1)


def test_what_earlier_runs_paid_counts_towards_the_cap(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.settle(reserve(ledger, "a", 0.6, 1.0), usd=0.6, answer={})
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.reserve("b", teacher="t", usd=0.6, cap_usd=1.0) is None
        reserve(ledger, "b", 0.4, 1.0)


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
call_id = ledger.reserve("done", teacher="t", usd=1.0, cap_usd=None)
ledger.settle(call_id, usd=0.25, answer={"content": "kept"})
ledger.reserve("lost", teacher="t", usd=1.0, cap_usd=None)
sys.stdout.write("ready\\n"); sys.stdout.flush()
time.sleep(600)
"""


def test_a_link_to_a_ledger_is_the_ledger(tmp_path):
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "l.sqlite")
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.reserve("a", teacher="t", usd=0.9, cap_usd=1.0)
        with pytest.raises(StorageError, match="in use by another run"):
            Ledger(tmp_path / "link.sqlite")
        assert ledger.reserved_usd == 0.9


def test_killed_holder_leaves_its_answers_and_holds_what_may_be_billed(tmp_path):
    path = tmp_path / "l.sqlite"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(StorageError, match="in use by another run"):
            Ledger(path)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with Ledger(path) as ledger:
        assert ledger.find("done") == {"content": "kept"}
        assert (ledger.spent_usd, ledger.held_usd, ledger.reserved_usd, ledger.num_answers) == (1.25, 1.0, 0.0, 1)
        assert ledger.reserve("lost", teacher="t", usd=0.75, cap_usd=2.0)


def test_a_ledger_of_the_first_format_keeps_its_answers(tmp_path):
    path = tmp_path / "l.sqlite"
    keys = [request_key(endpoint="e", request={}, sample=i) for i in range(3)]
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE answers (key TEXT PRIMARY KEY, teacher TEXT NOT NULL, usd REAL NOT NULL, answer TEXT, unix_s REAL)")
    rows = [
        (keys[0], 0.5, '{"content": "bought"}'),
        (f"{keys[1]} unanswered 0", 0.25, '{"error": "no answer within 2 s"}'),
        (f"{keys[1]} unanswered 1", 0.25, '{"error": "no answer within 2 s"}'),
        (keys[2], 1.0, None),
    ]
    db.executemany("INSERT INTO answers VALUES (?, 't', ?, ?, 0.0)", rows)
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    for _ in range(2):
        with Ledger(path) as ledger:
            assert [ledger.find(key) for key in keys] == [{"content": "bought"}, None, None]
            assert (ledger.spent_usd, ledger.held_usd, ledger.num_answers) == (2.0, 1.5, 1)


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
