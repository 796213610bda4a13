"""Who may spend next: first come, first served, and nobody waits for a call that can never be paid for. Which calls may find
their prompt in a cache."""

from __future__ import annotations

import asyncio
import threading

import pytest
from asking import ask, questions, teacher
from teacher_server import Reply, TeacherServer, question_text

from composer_replication.teachers import Failure, Ledger, Question, TeacherPool
from composer_replication.teachers.ledger import CACHED_S
from composer_replication.types.errors import TeacherError

BY_THE_BYTE = {"usd_per_million_input": 100.0, "usd_per_million_output": 0.0}


def session(steps):
    """Short questions, each after the one before it."""
    return [
        Question(question_id=f"s{i}", messages=[{"role": "user", "content": f"s{i}"}], trace="s", step=i) for i in range(steps)
    ]


def long(num_bytes):
    return Question(question_id="long", messages=[{"role": "user", "content": "long " + "x" * num_bytes}])


def words(server):
    return [question_text(body).split()[0] for body in server.requests]


def test_a_call_that_has_to_be_alone_has_its_turn():
    """Beside any other call the long question would put more than the cap's share at risk, and the session never pauses."""
    with TeacherServer(lambda _body, _number: Reply(content="x", prompt_tokens=10)) as server, Ledger() as ledger:
        one = teacher(server, **BY_THE_BYTE, max_concurrency=8)
        answers = ask([one], [*session(8), long(3000)], ledger=ledger, cap=2.0)
        assert [a.error for a in answers] == [None] * 9
        assert words(server)[:3] == ["s0", "long", "s1"]


def test_a_call_that_never_fits_holds_up_nobody():
    with TeacherServer(lambda _body, _number: Reply(content="x", prompt_tokens=10)) as server, Ledger() as ledger:
        one = teacher(server, **BY_THE_BYTE, max_concurrency=8)
        answers = ask([one], [*session(8), long(30_000)], ledger=ledger, cap=2.0)
        assert [a.failure for a in answers] == [None] * 8 + [Failure.BUDGET]
        assert words(server) == [f"s{i}" for i in range(8)]


def test_who_is_cancelled_in_line_holds_up_nobody():
    """The long question waits for the first answer; given up, it leaves the line to the next."""
    asked, go = threading.Event(), threading.Event()

    def answer(_body, number):
        asked.set()
        return Reply(content="x", prompt_tokens=10, before=go.wait)

    async def run(server, ledger):
        one = teacher(server, **BY_THE_BYTE, max_concurrency=8)
        async with TeacherPool([one], ledger=ledger, max_total_usd=2.0) as pool:
            first = asyncio.create_task(pool.ask(questions(1)))
            await asyncio.to_thread(asked.wait)
            given_up = asyncio.create_task(pool.ask([long(3000)]))
            last = asyncio.create_task(pool.ask(session(1)))
            while len(pool._purse._line) < 2 and len(server.requests) < 2:
                await asyncio.sleep(0.01)
            assert len(server.requests) == 1, "the last waits behind the long one"
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert len(pool._purse._line) <= 1
            while len(server.requests) < 2:
                await asyncio.sleep(0.01)
            go.set()
            return await first + await last

    with TeacherServer(answer) as server, Ledger() as ledger:
        assert [a.error for a in asyncio.run(run(server, ledger))] == [None, None]
        assert words(server) == ["say", "s0"]


def follow(ledger):
    """Whether each call of the ledger follows another, in the order in which they were made."""
    return [bool(follows) for (follows,) in ledger._db.execute("SELECT follows FROM calls ORDER BY unix_s")]


def test_a_step_follows_the_one_before_it_whichever_process_asked_that(tmp_path):
    with TeacherServer(lambda _body, _number: Reply(content="x")) as server:
        for steps in (2, 3):
            with Ledger(tmp_path / "l.sqlite") as ledger:
                ask([teacher(server)], session(steps), ledger=ledger)
        with Ledger(tmp_path / "l.sqlite") as ledger:
            assert follow(ledger) == [False, True, True]
            ask([teacher(server)], questions(2), ledger=ledger)
            assert follow(ledger)[3:] == [False, False]
            ledger._db.execute("UPDATE calls SET unix_s = unix_s - ?", (CACHED_S,))
            ask([teacher(server)], session(4), ledger=ledger)
            assert follow(ledger)[5:] == [False], "too long ago"


def test_what_is_asked_again_follows_itself():
    """Both attempts of the first go are lost, and the second was part of it."""
    with TeacherServer(lambda _body, number: Reply(content="x", cut=number < 2)) as server, Ledger() as ledger:
        with pytest.raises(TeacherError):
            ask([teacher(server)], questions(1), ledger=ledger)
        ask([teacher(server)], questions(1), ledger=ledger)
        assert follow(ledger) == [False, False, True]
