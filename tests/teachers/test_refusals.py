from __future__ import annotations

import json

import pytest
from asking import ask, questions, teacher
from teacher_server import Reply, TeacherServer

from composer_replication.teachers import Ledger
from composer_replication.teachers.breaker import ALIKE, Breaker
from composer_replication.types.errors import ConfigError, TeacherError


def refusal(text: str) -> Reply:
    return Reply(status=400, body=json.dumps({"error": {"message": text}}).encode())


def test_a_teacher_that_refuses_everything_alike_is_not_asked_300_times():
    with TeacherServer(lambda _body, number: refusal(f"request {number}: use max_completion_tokens")) as server:
        with pytest.raises(TeacherError, match="max_completion_tokens"):
            ask([teacher(server, max_concurrency=2)], questions(300))
        assert ALIKE <= len(server.requests) <= ALIKE + 1, "those under way when the breaker opened"


def test_refusals_for_what_is_in_a_question_leave_the_teacher_in():
    def answer(_body, number):
        return Reply(content="yes") if number in (0, 19) else refusal("the prompt is too long")

    with TeacherServer(answer) as server:
        found = ask([teacher(server, max_concurrency=1)], questions(20))
        assert len(server.requests) == 20
    assert [one.error is None for one in found] == [True, *[False] * 18, True]


def test_an_answer_in_the_ledger_is_an_answer():
    ledger = Ledger()
    with TeacherServer(lambda _body, number: Reply(content="yes") if number == 0 else refusal("too long")) as server:
        ask([teacher(server)], questions(1), ledger=ledger)
        ask([teacher(server, max_concurrency=1)], questions(20), ledger=ledger)
        assert len(server.requests) == 20


def test_the_breaker_counts_reasons_that_differ_in_numbers_as_one():
    breaker = Breaker()
    told = [breaker.refused("t", f"HTTP 400: bad field {n}") for n in range(ALIKE)]
    assert [text is not None for text in told] == [False] * (ALIKE - 1) + [True]
    named = [breaker.refused("w", f"HTTP 400: bad field, request_id req_01{'abcdefgh'[n]}CaB{n}x") for n in range(ALIKE)]
    assert [text is not None for text in named] == [False] * (ALIKE - 1) + [True]
    for n in range(ALIKE):
        assert breaker.refused("u", "HTTP 400: one" if n % 2 else "HTTP 422: other") is None
    breaker.answered("v")
    assert not any(breaker.refused("v", "HTTP 400: too long") for _ in range(3 * ALIKE))


def test_further_fields_are_sent_and_belong_to_the_question():
    ledger = Ledger()
    with TeacherServer(lambda _body, number: Reply(content=f"answer {number}")) as server:
        plain = teacher(server, limit_field="max_completion_tokens")
        careful = teacher(server, extra_body={"reasoning_effort": "high", "reasoning": {"max_tokens": 9}}, mark_cache=True)
        contents = [ask([one], questions(1), ledger=ledger)[0].content for one in (plain, careful, careful)]
        first, second = server.requests
    assert contents == ["answer 0", "answer 1", "answer 1"], "the third is in the ledger"
    assert first["max_completion_tokens"] == 100
    assert "max_tokens" not in first
    assert (second["reasoning_effort"], second["reasoning"], second["max_tokens"]) == ("high", {"max_tokens": 9}, 100)
    for taken in ("n", "max_tokens", "stream"):
        with pytest.raises(ConfigError, match=f"extra_body sets {taken}"):
            teacher("http://localhost", extra_body={taken: 2})
