"""What a call is booked at, and what may be billed although no answer came."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from asking import ask, questions, teacher
from teacher_server import Reply, TeacherServer

from composer_replication.teachers import Failure, Ledger, Question, Teacher, TeacherPool
from composer_replication.teachers.purse import CallCost
from composer_replication.types.errors import ConfigError, TeacherError

PRICED = {"usd_per_million_input": 100.0, "usd_per_million_output": 1000.0}


def booked(usage, **changes):
    """The one answer to a question, and its ledger's paid and held USD."""
    reply = Reply(content="x", usage_fields={"prompt_tokens": 100, "completion_tokens": 10, **usage})
    with TeacherServer(lambda body, n: reply) as server, Ledger() as ledger:
        one = teacher(server, **{**PRICED, **changes})
        (answer,) = ask([one], questions(1), ledger=ledger, cap=10.0)
        most = one.most_expensive(questions(1)[0])
        return answer, ledger.spent_usd - ledger.held_usd, ledger.held_usd, most


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        ({"cost": 0.003}, 0.003),
        ({}, 0.02),
        ({"cost": None}, 0.02),
        ({"cost": 0.0}, 0.02),
        ({"prompt_tokens_details": {"cached_tokens": 60}}, 0.0146),
        ({"prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 20}}, 0.0151),
        ({"prompt_tokens_details": {"cached_tokens": None}}, 0.02),
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.019}}, 0.02),
        ({"cost": 0.001, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.019}}, 0.001),
    ],
)
def test_reported_cost_or_the_price_table(usage, usd):
    answer, paid, held, _ = booked(usage, usd_per_million_cache_read=10.0, usd_per_million_cache_write=125.0)
    assert (answer.usd, paid, held) == (pytest.approx(usd), pytest.approx(usd), 0.0)
    assert answer.cached_tokens == ((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


@pytest.mark.parametrize(
    "usage",
    [
        {"cost": -0.001},
        {"cost": 10.1},
        {"cost": 1e9},
        {"cost": float("nan")},
        {"cost": "free"},
        {"completion_tokens": 10**12},
        {"completion_tokens": -5},
        {"prompt_tokens_details": {"cached_tokens": 101}},
    ],
    ids=str,
)
def test_a_price_that_cannot_be_is_held_at_the_most_the_call_can_have_cost(usage):
    answer, paid, held, most = booked(usage)
    assert (answer.content, answer.error) == ("x", None)
    assert (answer.usd, paid, held) == (most, 0.0, most)


def test_a_free_teacher_without_usage_is_free():
    with TeacherServer(lambda body, n: Reply(content="x", usage=False)) as server, Ledger() as ledger:
        free = teacher(server, usd_per_million_output=0.0)
        answers = ask([free], questions(8), ledger=ledger, cap=0.0)
        assert ([a.error for a in answers], ledger.spent_usd) == ([None] * 8, 0.0)


def test_a_wrong_price_table_is_found_out():
    """Five impossible prices in a row, not one among good ones."""
    costs = [900.0, 0.01, 900.0, 900.0, 900.0, 900.0, 0.01] + [900.0] * 93
    with TeacherServer(lambda body, n: Reply(content="x", cost=costs[n])) as server, Ledger() as ledger:
        answers = ask([teacher(server, max_concurrency=1)], questions(20), ledger=ledger, cap=100.0)
        assert [a.failure for a in answers] == [None] * 12 + [Failure.LEFT_OUT] * 8
        assert "others than the price table says: it reports $900" in answers[-1].error
        assert (ledger.held_usd, ledger.spent_usd) == (pytest.approx(10.0), pytest.approx(10.02))


def test_a_price_above_the_table_is_believed_within_the_cap():
    """Five of them among good ones are enough; until then each counts as reported."""
    costs = [9.0, 0.01] * 50
    with TeacherServer(lambda body, n: Reply(content="x", cost=costs[n])) as server, Ledger() as ledger:
        answers = ask([teacher(server, max_concurrency=1)], questions(20), ledger=ledger, cap=100.0)
        assert [a.failure for a in answers] == [None] * 9 + [Failure.LEFT_OUT] * 11
        assert (ledger.held_usd, ledger.spent_usd) == (pytest.approx(45.0), pytest.approx(45.04))


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize(
    "prices", [PRICED, {"usd_per_million_input": 0.0, "usd_per_million_output": 0.0}], ids=["priced", "free"]
)
def test_an_endpoint_dearer_than_its_table_stops_at_the_cap(in_flight, prices):
    """It bills all it reports: beyond the cap by no more than the calls in flight when the first price came."""
    slow = Reply(content="x", cost=3.0, before=lambda: time.sleep(0.2))
    with TeacherServer(lambda body, n: slow) as server, Ledger() as ledger:
        one = teacher(server, **{**prices, "max_concurrency": in_flight})
        answers = ask([one], questions(40), ledger=ledger, cap=10.0)
        assert ledger.spent_usd == pytest.approx(3.0 * len(server.requests))
        assert len(server.requests) <= 2 + in_flight
        assert {a.failure for a in answers} <= {None, Failure.BUDGET, Failure.LEFT_OUT}


@pytest.mark.parametrize("field", ["input", "output", "cache_read", "cache_write"])
@pytest.mark.parametrize("usd", [-1.0, float("nan"), float("inf")])
def test_prices_are_amounts(field, usd):
    with pytest.raises(ConfigError, match=f"usd_per_million_{field} is out of range"):
        Teacher(name="t", model="m", **{f"usd_per_million_{field}": usd})


@pytest.mark.parametrize("cap", [float("nan"), float("inf"), -1.0])
def test_a_cap_is_an_amount(cap):
    with pytest.raises(ConfigError, match="is not an amount of money"):
        ask([teacher("http://x")], questions(1), cap=cap)


def test_what_is_written_to_a_cache_may_be_the_dearest():
    (asked,) = questions(1)
    plain = teacher("http://x", **PRICED)
    assert teacher("http://x", **PRICED, usd_per_million_cache_read=1.0).most_expensive(asked) == plain.most_expensive(asked)
    assert teacher("http://x", **PRICED, usd_per_million_cache_write=200.0).most_expensive(asked) > plain.most_expensive(asked)


# --- calls without an answer --------------------------------------------------------------------------------------------


def failing(reply, **changes):
    """What a teacher that always fails so leaves behind: its failure, requests, held USD over those of one lost call."""
    with TeacherServer(lambda body, n: reply) as server, Ledger() as ledger:
        one = teacher(server, **{**PRICED, "max_retries": 3, **changes})
        failures = []
        with pytest.raises(TeacherError):
            ask([one], questions(1), ledger=ledger, cap=100.0, on_answer=lambda a: failures.append(a.failure))
        assert (ledger.reserved_usd, ledger.num_answers) == (0.0, 0)
        parts = CallCost.of(one, questions(1)[0], follows=False).parts
        return failures[0], len(server.requests), pytest.approx(ledger.held_usd / (parts.prompt_usd / 3 + parts.answer_usd))


NOW = {"Retry-After": "0"}


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(status=429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}), (Failure.RATE_LIMITED, 2, 0)),
        (Reply(status=429, headers={"Retry-After": "3600"}), (Failure.RATE_LIMITED, 1, 0)),
        (Reply(status=429, headers={"Retry-After": "Wed, 21 Oct 2065 07:28:00 GMT"}), (Failure.RATE_LIMITED, 1, 0)),
        (Reply(status=503, headers={"Retry-After": "soon"}), (Failure.SERVER, 2, 0)),
        (Reply(status=400), (Failure.REFUSED, 1, 0)),
        (Reply(status=401), (Failure.REFUSED, 1, 0)),
        (Reply(status=502), (Failure.GATEWAY, 2, 2)),
        (Reply(status=504), (Failure.GATEWAY, 2, 2)),
        (Reply(content="x", cut=True), (Failure.LOST, 2, 2)),
        (Reply(body=b"<html>"), (Failure.UNREADABLE, 2, 2)),
        (Reply(content="half", finish_reason="error"), (Failure.UNREADABLE, 2, 2)),
    ],
    ids=lambda value: str(value[0] if isinstance(value, tuple) else (value.status, value.headers)),
)
def test_each_failure_does_to_money_what_the_documentation_says(reply, outcome):
    assert failing(reply, max_retries=1) == outcome


def test_a_slow_drip_ends_and_is_held():
    """A byte again and again, so that no limit between two bytes would ever be reached."""
    over = threading.Event()
    try:
        assert failing(Reply(content="x", drip=over), timeout_s=1.0) == (Failure.TIMEOUT, 1, 1)
    finally:
        over.set()


def test_what_the_caller_stops_waiting_for_is_held():
    asked, release = threading.Event(), threading.Event()

    def answer(body, number):
        asked.set()
        return Reply(content="late", before=release.wait)

    async def run(server, ledger):
        async with TeacherPool([teacher(server, **PRICED)], ledger=ledger, max_total_usd=10.0) as pool:
            asking = asyncio.create_task(pool.ask(questions(1)))
            await asyncio.to_thread(asked.wait)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    with TeacherServer(answer) as server, Ledger() as ledger:
        asyncio.run(run(server, ledger))
        release.set()
        parts = CallCost.of(teacher(server, **PRICED), questions(1)[0], follows=False).parts
        assert ledger.held_usd == pytest.approx(parts.prompt_usd / 3 + parts.answer_usd / 4)
        assert (ledger.reserved_usd, ledger.num_answers) == (0.0, 0)


def test_a_call_is_named_to_whom_it_is_made(tmp_path):
    """Each attempt has an id of its own, under which the bill finds it."""
    replies = [Reply(status=429, headers=NOW), Reply(content="x", cut=True), Reply(content="fine", cost=0.01)]
    with TeacherServer(lambda body, n: replies[n]) as server, Ledger() as ledger:
        ask([teacher(server, **PRICED, max_retries=1)], questions(1), ledger=ledger, cap=10.0)
        ids = [h["x-client-request-id"] for h in server.headers]
        assert len(set(ids)) == 3
        done = ledger.reconcile({ids[1]: 0.02, ids[2]: 0.01})
        assert (done.billed, done.free, done.corrected, done.unknown) == (1, 0, 0, 0)
        assert (ledger.spent_usd, ledger.held_usd) == (pytest.approx(0.03), 0.0)
        assert ledger.reconcile({ids[0]: 0.5}).unknown == 1


def test_a_question_of_a_trace_is_no_other_question():
    """Where a question stands is not what it asks: the answer is in the ledger."""
    with TeacherServer(lambda body, n: Reply(content="x")) as server, Ledger() as ledger:
        ask([teacher(server)], questions(1), ledger=ledger)
        marked = teacher(server, mark_cache=True)
        (again,) = ask([marked], [Question(question_id="r", messages=questions(1)[0].messages, trace="t", step=3)], ledger=ledger)
        assert (again.cached, len(server.requests)) == (True, 1)
