"""Calls whose end nobody saw: the amount held for each, and the most of a cap that they can cost."""

from __future__ import annotations

import sqlite3

import pytest
from asking import ask, questions, teacher
from teacher_server import Reply, TeacherServer

from composer_replication.teachers import Ledger
from composer_replication.teachers.habits import RECENT, Habits
from composer_replication.teachers.ledger import _LEAST_AT_RISK, AT_RISK, STOPPED


def test_nothing_is_likely_before_ten_calls():
    habits = Habits([0.1] * 9)
    assert habits.likely(2.0) == 2.0
    habits.add(0.05, 0.5)
    assert habits.likely(2.0) == pytest.approx(2.0 * 0.1 * 1.25)


def test_nine_of_ten_cost_less_and_a_quarter_is_added():
    habits = Habits([i / 100 for i in range(1, 101)])
    assert habits.likely(1.0) == 1.0
    assert Habits([0.01] * 89 + [0.5] * 11).likely(1.0) == pytest.approx(0.625)
    assert Habits([0.01] * 91 + [0.5] * 9).likely(1.0) == pytest.approx(0.0125)


def test_only_recent_calls_count_and_free_ones_say_nothing():
    habits = Habits([1.0] * RECENT)
    for _ in range(RECENT):
        habits.add(0.0, 0.0)
    assert habits.likely(1.0) == 1.0
    for _ in range(RECENT):
        habits.add(0.01, 1.0)
    assert habits.likely(1.0) == pytest.approx(0.0125)


def test_a_process_that_died_leaves_what_is_likely(tmp_path):
    first = Ledger(tmp_path / "l.sqlite")
    first.reserve("a", teacher="t", usd=1.0, cap_usd=100.0, likely_usd=0.25)
    first.reserve("b", teacher="t", usd=1.0, cap_usd=100.0)
    first._unlock()  # as the kernel does for a dead process
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert (ledger.spent_usd, ledger.held_usd) == (1.25, 1.25)


def test_what_is_held_is_no_more_than_was_reserved():
    with Ledger() as ledger:
        for usd, held in ((0.25, 0.25), (3.0, 1.0), (None, 1.0)):
            before = ledger.held_usd
            ledger.hold(ledger.reserve("a", teacher="t", usd=1.0, cap_usd=None), reason="lost", usd=usd)
            assert ledger.held_usd - before == held
        assert ledger.admits(1.0, ledger.spent_usd + 1.0)
        assert not ledger.admits(1.01, ledger.spent_usd + 1.0)


def test_a_share_of_the_cap_may_be_lost_and_half_of_it_at_a_time():
    cap = 100.0
    with Ledger() as ledger:

        def reserve(name):
            return ledger.reserve(name, teacher="t", usd=10.0, cap_usd=cap, likely_usd=0.5)

        calls = [reserve(f"{i}") for i in range(5)]
        assert sum(call is not None for call in calls) == 5
        assert AT_RISK * cap / 2 == 5 * 0.5
        assert reserve("more") is None
        ledger.settle(calls[0], usd=0.1, answer={})
        assert reserve("more") is not None


def test_a_process_killed_again_and_again_leaves_the_share_and_a_call_each_time(tmp_path):
    cap, kills = 100.0, 12
    for kill in range(kills):
        ledger = Ledger(tmp_path / "l.sqlite")
        for i in range(50):
            ledger.reserve(f"{kill}/{i}", teacher="t", usd=1.0, cap_usd=cap, likely_usd=0.01)
        assert ledger.any_open
        ledger._unlock()
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.held_usd <= AT_RISK * cap + kills * _LEAST_AT_RISK * cap / 2


def test_what_costs_nothing_is_never_held_up_nor_lost(tmp_path):
    with Ledger() as ledger:
        ledger.hold(ledger.reserve("a", teacher="t", usd=9.0, cap_usd=10.0), reason=STOPPED)
        ledger.reserve("b", teacher="t", usd=0.1, cap_usd=10.0, likely_usd=0.1)
        assert ledger.admits(0.0, 10.0, likely_usd=0.0)
        assert not ledger.admits(0.1, 10.0, likely_usd=0.1)


def test_what_a_bill_frees_says_nothing_of_other_calls():
    with Ledger() as ledger:
        for i in range(20):
            ledger.hold(ledger.reserve(f"{i}", teacher="t", usd=1.0, cap_usd=None), reason="lost")
        ledger.settle(ledger.reserve("answered", teacher="t", usd=1.0, cap_usd=None), usd=0.5, answer={})
        ledger.reconcile({})
        assert ledger.shares("t", 200) == [0.5]


def test_what_is_lost_on_the_way_is_held_with_the_longest_answer():
    """A gateway gives up on the longest answers: 200 of them billed in full stay within what is held and paid."""
    short = Reply(content="yes", completion_tokens=5)
    with TeacherServer(lambda _body, number: short if number < 20 else Reply(status=504)) as server, Ledger() as ledger:
        one = teacher(server, usd_per_million_output=100.0, max_tokens=100)
        answers = ask([one], questions(220), ledger=ledger, cap=1.0)
        lost = len(server.requests) - 20
        assert lost > 0
        assert ledger.held_usd >= lost * 100 * 100.0 / 1e6
        assert len([a for a in answers if a.error is None]) == 20


def test_shares_are_those_of_paid_calls_that_had_a_price(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        for name, teacher, most, usd, doubt in (
            ("a", "t", 1.0, 0.25, ""),
            ("b", "t", 1.0, 0.5, "no usage"),
            ("c", "t", 0.0, 0.0, ""),
            ("d", "other", 1.0, 0.75, ""),
            ("e", "t", 2.0, 0.25, ""),
        ):
            ledger.settle(ledger.reserve(name, teacher=teacher, usd=most, cap_usd=None), usd=usd, answer={}, doubt=doubt)
        assert ledger.shares("t", 10) == [0.25, 0.125]
        assert ledger.shares("t", 1) == [0.125]


def test_a_ledger_of_the_second_format_keeps_everything(tmp_path):
    path = tmp_path / "l.sqlite"
    db = sqlite3.connect(path)
    db.execute(
        "CREATE TABLE calls (call_id TEXT PRIMARY KEY, key TEXT NOT NULL, teacher TEXT NOT NULL, status TEXT NOT NULL, usd REAL "
        "NOT NULL, answer TEXT, note TEXT NOT NULL, unix_s REAL NOT NULL) STRICT, WITHOUT ROWID"
    )
    rows = [("1", "k", "t", "paid", 0.5, "{}", "", 0.0), ("2", "l", "t", "open", 0.25, None, "", 0.0)]
    db.executemany("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    db.execute("PRAGMA user_version = 2")
    db.commit()
    db.close()
    for _ in range(2):
        with Ledger(path) as ledger:
            assert (ledger.find("k"), ledger.spent_usd, ledger.held_usd, ledger.shares("t", 9)) == ({}, 0.75, 0.25, [])
