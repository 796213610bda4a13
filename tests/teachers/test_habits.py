"""What a call is held at whose end nobody saw, and the most of a cap that such calls can hold."""

from __future__ import annotations

import sqlite3

import pytest
from asking import ask, questions, teacher
from teacher_server import Reply, TeacherServer

from composer_replication.teachers import Ledger, Question
from composer_replication.teachers.habits import FEWEST, RECENT, CallParts, Habits, Used
from composer_replication.teachers.ledger import AT_RISK, LEAST_AT_RISK, STOPPED
from composer_replication.teachers.purse import CallCost
from composer_replication.teachers.reply import Usage

PARTS = CallParts(prompt_usd=0.8, answer_usd=0.2)
COLD_USD = 0.8 / 3 + 0.2 / 4
OPUS = {
    "usd_per_million_input": 5.0,
    "usd_per_million_output": 25.0,
    "usd_per_million_cache_read": 0.5,
    "usd_per_million_cache_write": 6.25,
    "max_tokens": 4096,
}


def used(tokens_per_byte=0.25, answer_share=0.1, price_share=None):
    return Used(tokens_per_byte, answer_share, price_share)


# --- estimates ----------------------------------------------------------------------------------------------------------


def test_before_ten_calls_a_token_for_three_bytes_and_a_quarter_of_the_longest_answer():
    habits = Habits([used()] * (FEWEST - 1))
    assert habits.likely_usd(PARTS) == pytest.approx(COLD_USD)
    habits.add(used())
    assert habits.likely_usd(PARTS) == pytest.approx(0.8 * 0.25 + 0.2 * 0.1)
    assert habits.likely_usd(PARTS, tokens_per_byte=0.5, whole_answer=True) == pytest.approx(0.8 * 0.5 + 0.2)


def test_nine_of_ten_prompts_have_fewer_tokens():
    habits = Habits([used(tokens_per_byte=i / 100, answer_share=0.0) for i in range(1, 101)])
    assert habits.likely_usd(PARTS) == pytest.approx(0.8 * 0.9)


def test_a_kill_finds_a_long_answer_as_often_as_it_is_long():
    """One answer of twenty is forty times as long as the others: nine of ten answers are short, and most of the time is its."""
    habits = Habits([used(tokens_per_byte=0.0, answer_share=0.02)] * 19 + [used(tokens_per_byte=0.0, answer_share=0.8)])
    assert habits.likely_usd(PARTS) == pytest.approx(0.2 * 0.8)
    assert Habits([used(tokens_per_byte=0.0, answer_share=0.0)] * FEWEST).likely_usd(PARTS) == 0.0


def test_only_recent_calls_count():
    habits = Habits([used(tokens_per_byte=1.0)] * RECENT)
    for _ in range(RECENT):
        habits.add(used())
    assert habits.likely_usd(PARTS) == pytest.approx(0.8 * 0.25 + 0.2 * 0.1)


def cost_of(num_bytes, *, follows=False, **changes):
    one = teacher("http://x", **{**OPUS, **changes})
    return CallCost.of(one, Question(question_id="q", messages=[{"role": "user", "content": "x" * num_bytes}]), follows=follows)


def usage(prompt_tokens, completion_tokens=100, **details):
    return Usage.model_validate(
        {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "prompt_tokens_details": details}
    )


def learnt(cost, usage, usd=None):
    """The habits of twelve such calls, each at the price of the table unless it is given."""
    priced = cost.teacher.price(
        usage.prompt_tokens, usage.completion_tokens, cached=usage.cached_tokens, written=usage.written_tokens
    )
    return Habits([cost.used(usage, priced if usd is None else usd)] * 12)


def test_short_prompts_tell_what_a_long_one_costs():
    """The answer is most of a short call's cost and little of a long one's: one share of the cost would give a seventh."""
    habits = learnt(cost_of(1000, usd_per_million_cache_write=5.0), usage(250))
    long = cost_of(1_000_000, usd_per_million_cache_write=5.0)
    real_usd = long.teacher.price(240_000, 100)
    assert real_usd <= habits.likely_usd(long.parts) <= 1.1 * real_usd


def test_what_a_cache_saves_is_not_expected_of_a_call_without_one():
    cached = cost_of(100_000, follows=True)
    habits = learnt(cached, usage(25_000, cached_tokens=24_000, cache_write_tokens=1000))
    price = cached.teacher.price
    assert habits.likely_usd(cached.parts) == pytest.approx(price(25_000, 100, cached=24_000, written=1000), rel=0.01)
    alone = cost_of(100_000)
    assert habits.likely_usd(alone.parts) == pytest.approx(price(25_000, 100, written=25_000), rel=0.01)
    few = learnt(alone, usage(25_000, cache_write_tokens=25_000))
    assert few.likely_usd(cached.parts) == few.likely_usd(alone.parts), "no call that follows another was seen"


def test_a_reported_price_above_the_table_raises_estimates_and_one_below_counts_where_a_cache_helps():
    alone, cached = cost_of(100_000), cost_of(100_000, follows=True)
    told = usage(25_000, cache_write_tokens=25_000)
    by_table = alone.teacher.price(25_000, 100, written=25_000)
    assert learnt(alone, told, 1.5 * by_table).likely_usd(alone.parts) == pytest.approx(1.5 * by_table, rel=0.01)
    for cheaper in (learnt(alone, told, 0.2 * by_table), learnt(cached, told, 0.2 * by_table)):
        assert cheaper.likely_usd(alone.parts) == pytest.approx(by_table, rel=0.01)
    assert learnt(cached, told, 0.2 * by_table).likely_usd(cached.parts) == pytest.approx(0.2 * by_table, rel=0.1)


def test_a_reply_that_names_no_tokens_teaches_nothing():
    assert cost_of(1000).used(None, 0.5) is None
    assert cost_of(1000).used(usage(0, 0), 0.5) is None
    free = cost_of(1000, **dict.fromkeys(OPUS, 0.0) | {"max_tokens": 100})
    assert free.used(usage(250), 0.0) is None


# --- calls that were lost -----------------------------------------------------------------------------------------------


def killed(path, *keys, parts=PARTS):
    """A process that dies with a call open under each of these keys."""
    ledger = Ledger(path)
    for key in keys:
        assert ledger.reserve(key, teacher="t", usd=1.0, cap_usd=100.0, likely_usd=0.25, parts=parts) is not None
    ledger._unlock()  # as the kernel does for a dead process


def pay(ledger, key, learnt=None):
    ledger.settle(ledger.reserve(key, teacher="t", usd=1.0, cap_usd=None), usd=0.5, answer={}, used=learnt or used())


def test_a_process_that_died_leaves_what_is_likely(tmp_path):
    first = Ledger(tmp_path / "l.sqlite")
    first.reserve("a", teacher="t", usd=1.0, cap_usd=100.0, likely_usd=0.25)
    first.reserve("b", teacher="t", usd=1.0, cap_usd=100.0)
    first._unlock()
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert (ledger.spent_usd, ledger.held_usd) == (1.25, 1.25)


@pytest.mark.parametrize("known", [used(), used(0.75, 1.0)], ids=["falls", "rises"])
def test_a_killed_call_is_estimated_anew_when_ten_calls_were_paid(tmp_path, known):
    path, likely_usd = tmp_path / "l.sqlite", 0.8 * known.tokens_per_byte + 0.2 * known.answer_share
    killed(path, "lost")
    with Ledger(path) as ledger:
        for i in range(FEWEST):
            assert ledger.held_usd == pytest.approx(COLD_USD)
            pay(ledger, f"{i}", known)
        assert ledger.held_usd == pytest.approx(likely_usd)
        left = 100.0 - ledger.spent_usd
        assert (ledger.admits(left - 1e-9, 100.0), ledger.admits(left + 1e-9, 100.0)) == (True, False)
    with Ledger(path) as ledger:
        assert ledger.held_usd == pytest.approx(likely_usd)
    killed(path, "another")
    with Ledger(path) as ledger:
        assert ledger.held_usd == pytest.approx(2 * likely_usd), "on opening"


def test_the_room_for_calls_at_a_time_comes_back(tmp_path):
    killed(tmp_path / "l.sqlite", "lost")
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.reserve("open", teacher="u", usd=1.0, cap_usd=10.0, likely_usd=0.1)
        assert not ledger.admits(1.0, 10.0, likely_usd=0.1)
        for i in range(FEWEST):
            pay(ledger, f"{i}", used(0.05, 0.05))
        assert ledger.admits(1.0, 10.0, likely_usd=0.1)


def test_a_lost_prompt_whose_question_was_answered_has_as_many_tokens(tmp_path):
    killed(tmp_path / "l.sqlite", "short", "long")
    with Ledger(tmp_path / "l.sqlite") as ledger:
        pay(ledger, "short", used(tokens_per_byte=0.125))
        for i in range(2 * FEWEST - 1):
            pay(ledger, f"{i}")
        assert ledger.held_usd == pytest.approx(0.8 * 0.125 + 0.8 * 0.25 + 2 * 0.2 * 0.1)


def test_a_call_lost_on_the_way_keeps_its_longest_answer():
    with Ledger() as ledger:
        lost = ledger.reserve("lost", teacher="t", usd=1.0, cap_usd=None, parts=PARTS)
        ledger.hold(lost, reason="the connection was lost", usd=0.9)
        whole = ledger.reserve("whole", teacher="t", usd=1.0, cap_usd=None, parts=PARTS)
        ledger.hold(whole, reason="the connection was lost")
        for i in range(FEWEST):
            pay(ledger, f"{i}")
        assert ledger.held_usd == pytest.approx(0.8 * 0.25 + 0.2 + 1.0)


def test_an_estimate_is_never_above_what_was_reserved(tmp_path):
    killed(tmp_path / "l.sqlite", "lost")
    with Ledger(tmp_path / "l.sqlite") as ledger:
        for i in range(FEWEST):
            pay(ledger, f"{i}", used(3.0, 1.0))
        assert ledger.held_usd == 1.0


def test_what_is_held_is_no_more_than_was_reserved():
    with Ledger() as ledger:
        for usd, held in ((0.25, 0.25), (3.0, 1.0), (None, 1.0)):
            before = ledger.held_usd
            ledger.hold(ledger.reserve("a", teacher="t", usd=1.0, cap_usd=None), reason="lost", usd=usd)
            assert ledger.held_usd - before == held
        assert ledger.admits(1.0, ledger.spent_usd + 1.0)
        assert not ledger.admits(1.01, ledger.spent_usd + 1.0)


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


# --- the most that may be lost ------------------------------------------------------------------------------------------


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


def test_three_kills_leave_at_most_the_share_and_each_further_one_a_hundredth(tmp_path):
    cap, held = 100.0, []
    for kill in range(7):
        ledger = Ledger(tmp_path / "l.sqlite")
        held.append(ledger.held_usd)
        i = 0
        while ledger.reserve(f"{kill}/{i}", teacher="t", usd=1.0, cap_usd=cap, likely_usd=0.125) is not None:
            i += 1
        assert i > 1, "several at a time"
        ledger._unlock()
    assert held[3] <= AT_RISK * cap
    assert held[6] <= (AT_RISK + 3 * LEAST_AT_RISK) * cap


def test_what_costs_nothing_is_never_held_up_nor_lost():
    with Ledger() as ledger:
        ledger.hold(ledger.reserve("a", teacher="t", usd=9.0, cap_usd=10.0), reason=STOPPED)
        ledger.reserve("b", teacher="t", usd=0.1, cap_usd=10.0, likely_usd=0.1)
        assert ledger.admits(0.0, 10.0, likely_usd=0.0)
        assert not ledger.admits(0.1, 10.0, likely_usd=0.1)


# --- what is learnt -----------------------------------------------------------------------------------------------------


def test_what_a_bill_frees_says_nothing_of_other_calls():
    with Ledger() as ledger:
        for i in range(20):
            ledger.hold(ledger.reserve(f"{i}", teacher="t", usd=1.0, cap_usd=None), reason="lost")
        ledger.reconcile({})
        assert not ledger.habits("t").known


def test_habits_are_those_of_the_teachers_paid_calls_that_had_a_price(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        for i in range(FEWEST):
            for name, learnt, doubt in (
                ("t", used(0.25, 0.5, 0.1), ""),
                ("t", used(1.0, 1.0, 1.0), "it reports $-1"),
                ("t", None, ""),
                ("other", used(0.5, 0.5), ""),
            ):
                call_id = ledger.reserve(f"{i}/{name}/{learnt}", teacher=name, usd=1.0, cap_usd=None)
                ledger.settle(call_id, usd=0.1, answer={}, doubt=doubt, used=learnt)
    with Ledger(tmp_path / "l.sqlite") as again:
        for one in (ledger, again):
            assert one.habits("t").num_seen == FEWEST
            assert one.habits("t").likely_usd(CallParts(0.8, 0.2, follows=True)) == pytest.approx(0.8 * 0.25 * 0.1 + 0.2 * 0.5)
            assert one.habits("other").likely_usd(PARTS) == pytest.approx(0.8 * 0.5 + 0.2 * 0.5)


@pytest.mark.parametrize("found", [2, 3])
def test_a_ledger_of_an_earlier_format_keeps_everything(tmp_path, found):
    path = tmp_path / "l.sqlite"
    db = sqlite3.connect(path)
    more = ", most REAL, likely REAL" if found == 3 else ""
    db.execute(
        "CREATE TABLE calls (call_id TEXT PRIMARY KEY, key TEXT NOT NULL, teacher TEXT NOT NULL, status TEXT NOT NULL, usd REAL "
        f"NOT NULL, answer TEXT, note TEXT NOT NULL, unix_s REAL NOT NULL{more}) STRICT, WITHOUT ROWID"
    )
    rows = [("1", "k", "t", "paid", 0.5, "{}", "", 0.0), ("2", "l", "t", "open", 0.25, None, "", 0.0)]
    amounts = (1.0, 0.125) if found == 3 else ()
    marks = ", ".join("?" * (8 + len(amounts)))
    db.executemany(f"INSERT INTO calls VALUES ({marks})", [row + amounts for row in rows])
    db.execute(f"PRAGMA user_version = {found}")
    db.commit()
    db.close()
    held = 0.125 if found == 3 else 0.25
    for _ in range(2):
        with Ledger(path) as ledger:
            assert (ledger.find("k"), ledger.spent_usd, ledger.held_usd) == ({}, 0.5 + held, held)
            assert ledger.habits("t").num_seen == 0
    with Ledger(path) as ledger:
        for i in range(FEWEST):
            pay(ledger, f"{i}")
        assert ledger.habits("t").known
        assert ledger.held_usd == held, "nothing tells what its prompt was"
