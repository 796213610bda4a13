from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
import threading
import time

import pytest
from asking import ask, questions, teacher
from teacher_server import Reply, TeacherServer, question_text

from composer_replication.teachers import (
    BUDGET,
    Ledger,
    Question,
    TeacherPool,
    Vote,
    cast_vote,
    wire_messages,
)
from composer_replication.types.errors import BudgetExceededError, ConfigError, TeacherError

TOOLS = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}}]


def echo(body, number):
    return Reply(content=f"echo {question_text(body)}", cost=0.01)


def test_answers_carry_text_calls_cost_and_tokens():
    def answer(body, number):
        return Reply(content="why", calls=[("f", {"path": "a"}), ("f", "{bad")], cost=0.5, prompt_tokens=7, completion_tokens=3)

    with TeacherServer(answer) as server:
        (a,) = ask([teacher(server, family="fam", temperature=0.3)], questions(1, tools=TOOLS))
    assert (a.question_id, a.teacher, a.family, a.content) == ("q0", "t", "fam", "why")
    assert (a.usd, a.prompt_tokens, a.completion_tokens, a.cached, a.error, a.finish_reason) == (
        0.5,
        7,
        3,
        False,
        None,
        "tool_calls",
    )
    assert a.latency_s > 0
    good, broken = a.tool_calls
    assert (good.name, good.arguments, good.error) == ("f", {"path": "a"}, None)
    assert "bad JSON" in broken.error
    (body,) = server.requests
    assert body == {
        "model": "model-t",
        "messages": [{"role": "user", "content": "say 0"}],
        "max_tokens": 100,
        "temperature": 0.3,
        "tools": TOOLS,
    }


def test_order_is_question_by_question():
    with TeacherServer(echo) as server:
        answers = ask([teacher(server, "a"), teacher(server, "b")], questions(3))
    assert [(a.question_id, a.teacher, a.content) for a in answers] == [
        (f"q{i}", t, f"echo say {i}") for i in range(3) for t in ("a", "b")
    ]


def test_price_table_when_the_endpoint_reports_no_cost():
    with TeacherServer(lambda body, n: Reply(content="x", prompt_tokens=1000, completion_tokens=10)) as server:
        (a,) = ask([teacher(server, usd_per_million_input=2.0, usd_per_million_output=100.0)], questions(1), cap=1.0)
    assert a.usd == pytest.approx(0.003)


def test_an_answer_without_usage_is_booked_at_the_most_it_can_have_cost():
    """Booked as free it would never reach the cap."""
    with TeacherServer(lambda body, n: Reply(content="x", usage=False)) as server:
        dear = teacher(server, usd_per_million_input=2.0, usd_per_million_output=100.0)
        (asked,) = questions(1)
        (a,) = ask([dear], [asked], cap=1.0)
        assert a.usd == dear.most_expensive(asked) > 0.01
        with Ledger() as ledger:
            answers = ask([dear], questions(10), ledger=ledger, cap=2.5 * a.usd)
    assert [a.error for a in answers].count(None) == 2


def test_second_run_is_free(tmp_path):
    with TeacherServer(echo) as server, Ledger(tmp_path / "l.sqlite") as ledger:
        first = ask([teacher(server)], questions(5), ledger=ledger)
        again = ask([teacher(server)], questions(6), ledger=ledger)
        assert len(server.requests) == 6
        assert [a.cached for a in again] == [True] * 5 + [False]
        assert [a.content for a in again[:5]] == [a.content for a in first]
        assert ledger.spent_usd == pytest.approx(0.06)
        ask([teacher(server, temperature=1.0)], questions(1), ledger=ledger)
        ask([teacher(server)], questions(1, sample=1), ledger=ledger)
        assert len(server.requests) == 8


def test_identical_questions_at_once_are_bought_once():
    same = [Question(question_id=f"q{i}", messages=[{"role": "user", "content": "same"}]) for i in range(5)]
    with TeacherServer(echo) as server, Ledger() as ledger:
        answers = ask([teacher(server)], same, ledger=ledger)
        assert len(server.requests) == 1
        assert [a.question_id for a in answers] == [f"q{i}" for i in range(5)]
        assert [a.cached for a in answers] == [False, True, True, True, True]
        assert ledger.spent_usd == pytest.approx(0.01)


def test_two_pools_on_one_ledger_buy_a_question_once():
    slow = Reply(content="x", cost=0.001, before=lambda: time.sleep(0.3))

    async def both(server, ledger):
        async with (
            TeacherPool([teacher(server)], ledger=ledger, max_total_usd=2.0) as one,
            TeacherPool([teacher(server)], ledger=ledger, max_total_usd=2.0) as other,
        ):
            return await asyncio.gather(one.ask(questions(3)), other.ask(questions(3)))

    with TeacherServer(lambda body, n: slow) as server, Ledger() as ledger:
        answers = [a for found in asyncio.run(both(server, ledger)) for a in found]
        assert [a.content for a in answers] == ["x"] * 6
        assert sum(a.cached for a in answers) == len(server.requests) == 3
        assert ledger.spent_usd == pytest.approx(0.003)


def test_concurrency_is_kept_per_teacher():
    gate = threading.Barrier(3, timeout=60)

    def answer(body, number):
        return Reply(content="x", before=gate.wait)

    with TeacherServer(answer) as server:
        ask([teacher(server, max_concurrency=3)], questions(9))
        assert server.most_at_once == 3


def test_cap_is_never_exceeded_under_concurrency():
    """Every call is billed at its upper bound, so one reservation too many would show as money over the cap."""
    asked = questions(30)
    priced = {"usd_per_million_input": 0.0, "usd_per_million_output": 1000.0, "max_tokens": 100, "max_concurrency": 16}
    with TeacherServer(lambda body, n: Reply(content="x", cost=0.1)) as server, Ledger() as ledger:
        teachers = [teacher(server, n, **priced) for n in "abc"]
        answers = ask(teachers, asked, ledger=ledger, cap=1.05)
        assert len(server.requests) == 10
        assert ledger.spent_usd == pytest.approx(1.0)
        assert ledger.reserved_usd == 0.0
        assert sum(a.error == BUDGET for a in answers) == 80
        assert sum(a.error is None for a in answers) == 10
        with pytest.raises(BudgetExceededError, match="is spent already"):
            ask(teachers, questions(40)[30:], ledger=ledger, cap=1.05)
        assert len(server.requests) == 10


def test_money_held_for_calls_under_way_is_waited_for():
    """Reserved 0.1 each, billed 0.01: under a cap of 0.25 all 12 fit, if later calls wait for earlier ones to settle."""
    priced = {"usd_per_million_output": 1000.0, "max_concurrency": 12}
    with TeacherServer(lambda body, n: Reply(content="x", cost=0.01)) as server, Ledger() as ledger:
        answers = ask([teacher(server, **priced)], questions(12), ledger=ledger, cap=0.25)
        assert all(a.error is None for a in answers)
        assert ledger.spent_usd == pytest.approx(0.12)
        assert server.most_at_once <= 2


def test_unknown_price_under_a_cap_is_refused_at_start():
    with TeacherServer(echo) as server:
        priceless = teacher(server, usd_per_million_output=None)
        with pytest.raises(ConfigError, match="has no price"):
            ask([priceless], questions(1), cap=1.0)
        assert server.requests == []
        assert ask([priceless], questions(1))[0].usd == 0.01


def test_missing_key_is_refused_at_start(monkeypatch):
    monkeypatch.delenv("SOME_TEACHER_KEY", raising=False)
    with TeacherServer(echo) as server:
        with pytest.raises(ConfigError, match="SOME_TEACHER_KEY is not set"):
            ask([teacher(server, api_key_env="SOME_TEACHER_KEY")], questions(1))
        monkeypatch.setenv("SOME_TEACHER_KEY", "sk-secret")
        ask([teacher(server, api_key_env="SOME_TEACHER_KEY")], questions(1))
        assert server.headers[0]["authorization"] == "Bearer sk-secret"
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "failure",
    [
        Reply(status=429, headers={"Retry-After": "0"}),
        Reply(status=500),
        Reply(content="cut off", cut=True),
        Reply(body=b'{"choices": ['),
    ],
    ids=["rate limit", "server error", "hang-up", "truncated JSON"],
)
def test_passing_failures_are_retried(failure):
    with TeacherServer(lambda body, n: failure if n == 0 else Reply(content="fine", cost=0.01)) as server, Ledger() as ledger:
        (a,) = ask([teacher(server, max_retries=2)], questions(1), ledger=ledger)
        assert (a.content, a.error) == ("fine", None)
        assert len(server.requests) == 2
        assert ledger.spent_usd - ledger.held_usd == pytest.approx(0.01)
        assert ledger.held_usd == pytest.approx(1.0 if failure.status == 200 else 0.0)


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": [',
        b'{"object": "chat.completion", "choices": []}',
        b'"hello"',
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"choices": [{}]}',
        b'{"choices": [{"message": {"content": 7}}]}',
        b'{"choices": [{"message": {"tool_calls": [{"id": "c", "type": "function"}]}}]}',
        b'{"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}}]}',
    ],
)
def test_body_that_stays_unreadable_is_an_error_value(body):
    def answer(asked, number):
        return Reply(content="fine") if asked["model"] == "model-good" else Reply(body=body)

    with TeacherServer(answer) as server, Ledger() as ledger:
        bad, good = ask([teacher(server, "bad"), teacher(server, "good")], questions(1), ledger=ledger)
        assert bad.error == "the response is not a chat completion"
        assert good.content == "fine"
        assert (ledger.num_answers, ledger.reserved_usd, len(server.requests)) == (1, 0.0, 3)


def test_hanging_endpoint_is_an_error_value():
    release = threading.Event()

    def answer(body, number):
        return Reply(content="late", before=release.wait if "1" in question_text(body) else None)

    with TeacherServer(answer) as server, Ledger() as ledger:
        answers = ask([teacher(server, timeout_s=5.0)], questions(3), ledger=ledger)
        release.set()
        assert [a.error for a in answers] == [None, "no answer within 5.0 s", None]
        assert ledger.reserved_usd == 0.0


def test_a_question_that_times_out_is_paid_for_and_not_sent_again_by_itself(tmp_path):
    """The endpoint may be at work on it still, and bill it: no retry, and what is booked stays booked when the run goes on."""
    release = threading.Event()
    priced = {"usd_per_million_output": 1000.0, "timeout_s": 1.0, "max_retries": 4}
    path = tmp_path / "l.sqlite"
    with TeacherServer(lambda body, n: Reply(content="fine", before=release.wait, cost=0.05)) as server:
        slow = teacher(server, **priced)
        with Ledger(path) as ledger, pytest.raises(TeacherError, match=r"no answer within 1\.0 s"):
            ask([slow], questions(1), ledger=ledger, cap=0.25)
        assert len(server.requests) == 1
        with Ledger(path) as ledger:
            assert (ledger.spent_usd, ledger.held_usd, ledger.num_answers) == (pytest.approx(0.1), pytest.approx(0.1), 0)
            assert ledger.spent_by_teacher() == {"t": pytest.approx(0.1)}
            with pytest.raises(TeacherError):
                ask([slow], questions(1), ledger=ledger, cap=0.25)
            assert ledger.spent_usd == pytest.approx(0.2)
            with pytest.raises(BudgetExceededError, match=r"\$0\.2000 of it held for calls that may have been billed"):
                ask([slow], questions(1), ledger=ledger, cap=0.25)
            assert len(server.requests) == 2
            release.set()
            (answer,) = ask([slow], questions(1), ledger=ledger, cap=0.5)
            assert (answer.content, answer.usd, ledger.num_answers) == ("fine", 0.05, 1)
            assert (ledger.spent_usd, ledger.held_usd) == (pytest.approx(0.25), pytest.approx(0.2))


@pytest.mark.parametrize("failure", [Reply(content="cut off", cut=True), Reply(body=b'{"choices": [')], ids=["hang-up", "JSON"])
def test_an_answer_that_cannot_be_read_is_paid_for(failure):
    """Every attempt by itself, and none beyond the cap."""
    with TeacherServer(lambda body, n: failure) as server, Ledger() as ledger:
        dear = teacher(server, usd_per_million_output=1000.0, max_retries=4)
        with pytest.raises(TeacherError):
            ask([dear], questions(1), ledger=ledger, cap=1.0)
        assert len(server.requests) == 2
        assert (ledger.spent_usd, ledger.reserved_usd) == (pytest.approx(0.2), 0.0)
        with pytest.raises(TeacherError):
            ask([dear], questions(2)[1:], ledger=ledger, cap=0.35)
        assert len(server.requests) == 3
        assert ledger.spent_usd == pytest.approx(0.3)


@pytest.mark.parametrize("status", [400, 429, 500])
def test_a_refusal_costs_nothing(status):
    with TeacherServer(lambda body, n: Reply(status=status)) as server, Ledger() as ledger:
        with pytest.raises(TeacherError):
            ask([teacher(server, usd_per_million_output=1000.0, max_retries=1)], questions(1), ledger=ledger, cap=1.0)
        assert len(server.requests) == (1 if status == 400 else 2)
        assert (ledger.spent_usd, ledger.reserved_usd) == (0.0, 0.0)


def test_a_refused_connection_is_tried_again_and_costs_nothing(caplog):
    """The endpoint comes up while the pool waits for its next attempt."""

    async def run(port, ledger):
        late = teacher(f"http://127.0.0.1:{port}/v1", usd_per_million_output=1000.0, max_retries=8)
        async with TeacherPool([late], ledger=ledger, max_total_usd=0.1) as pool:
            asking = asyncio.create_task(pool.ask(questions(1)))
            while "cannot be reached" not in caplog.text and not asking.done():
                await asyncio.sleep(0.01)
            with TeacherServer(lambda body, n: Reply(content="fine", cost=0.01), port=port):
                return await asking

    with socket.socket() as silent, Ledger() as ledger, caplog.at_level("INFO"):
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        silent.bind(("127.0.0.1", 0))  # keeps the port, and listens to nobody
        (answer,) = asyncio.run(run(silent.getsockname()[1], ledger))
        assert (answer.content, ledger.spent_usd) == ("fine", pytest.approx(0.01))


@pytest.mark.parametrize("status", [401, 404])
def test_teacher_that_fails_for_good_is_left_out_and_the_others_go_on(status):
    with TeacherServer(echo) as good, TeacherServer(lambda body, n: Reply(status=status)) as bad:
        answers = ask([teacher(good, "good"), teacher(bad, "bad", max_concurrency=1)], questions(5))
        assert [a.error for a in answers if a.teacher == "good"] == [None] * 5
        assert all(f"HTTP {status}" in a.error for a in answers if a.teacher == "bad")
        assert len(bad.requests) == 1


def test_single_refused_question_does_not_condemn_the_teacher():
    with TeacherServer(lambda body, n: Reply(status=400) if "1" in question_text(body) else echo(body, n)) as server:
        answers = ask([teacher(server)], questions(3))
    assert [a.error is None for a in answers] == [True, False, True]


def test_all_failing_names_endpoint_and_fix():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        with TeacherServer(lambda body, n: Reply(status=401)) as server, pytest.raises(TeacherError) as caught:
            ask([teacher(url, "gone"), teacher(server, "locked")], questions(3))
    text = str(caught.value)
    assert f"gone at {url}: cannot be reached" in text
    assert "locked" in text
    assert "HTTP 401" in text
    assert "api_key_env" in text


def test_pool_is_checked_before_anything_is_asked():
    with pytest.raises(ConfigError, match="no teachers"):
        ask([], questions(1))
    with pytest.raises(ConfigError, match="one name"):
        ask([teacher("http://x"), teacher("http://y")], questions(1))
    with pytest.raises(ConfigError, match="max_concurrency"):
        teacher("http://x", max_concurrency=0)


def test_wire_messages():
    def call(call_id, arguments):
        return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}

    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call("c0", {"é": 1})]},
        {"role": "tool", "content": "bad call", "tool_call_id": "c1", "name": ""},
        {"role": "tool", "content": "fine", "tool_call_id": "c0", "name": "f"},
        {"role": "assistant", "content": "oops"},
        {"role": "tool", "content": "malformed", "tool_call_id": "c2", "name": ""},
    ]
    assert wire_messages(messages) == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call("c0", '{"é": 1}')]},
        {"role": "tool", "tool_call_id": "c0", "content": "fine"},
        {"role": "user", "content": "bad call"},
        {"role": "assistant", "content": "oops"},
        {"role": "user", "content": "malformed"},
    ]


def completion(message, *, usage=None, finish_reason="stop"):
    """A body as an endpoint with habits of its own sends it."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    reply = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    return Reply(body=json.dumps(reply if usage is None else reply | {"usage": usage}).encode())


def wire_call(**function):
    return {"content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", **function}}]}


def nested(depth):
    """JSON of an object whose `a` makes it `depth` containers deep."""
    return '{"a": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


def ask_twice(reply, **changes):
    """One teacher's answer to one question, from the endpoint and then from the ledger."""
    with TeacherServer(lambda body, n: reply) as server, Ledger() as ledger:
        asked = [teacher(server, usd_per_million_output=1000.0, **changes)], questions(1)
        (first,), (again,) = ask(*asked, ledger=ledger), ask(*asked, ledger=ledger)
        assert (first.cached, again.cached, len(server.requests)) == (False, True, 1)
        assert ledger.spent_usd == first.usd
        assert dataclasses.replace(again, cached=False) == first
        assert isinstance(cast_vote(again), str | Vote)
    return first


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"completion_tokens": 5},
        {"prompt_tokens": 10, "completion_tokens": None},
        {"prompt_tokens": -10, "completion_tokens": 5},
        {"prompt_tokens": 10, "completion_tokens": 5, "cost": -1.0},
        {"prompt_tokens": 10, "completion_tokens": 5, "cost": float("nan")},
        "unknown",
    ],
    ids=str,
)
def test_usage_that_says_nothing_is_booked_at_the_most_the_answer_can_have_cost(usage):
    assert ask_twice(completion({"content": "x"}, usage=usage)).usd == pytest.approx(0.1)


@pytest.mark.parametrize("said", [None, [], [{"type": "text", "text": "on"}, {"type": "thinking", "text": "?"}, "e"]], ids=str)
def test_a_content_in_parts_is_joined(said):
    assert ask_twice(completion({"content": said}, finish_reason=None)).content == ("one" if said else "")


def test_arguments_may_be_an_object():
    (call,) = ask_twice(completion(wire_call(arguments={"path": "é"}))).tool_calls
    assert (call.name, call.arguments, call.error) == ("f", {"path": "é"}, None)


@pytest.mark.parametrize("arguments", [None, ""])
def test_a_call_needs_no_arguments(arguments):
    (call,) = ask_twice(completion(wire_call(arguments=arguments))).tool_calls
    assert (call.name, call.arguments, call.error) == ("f", {}, None)


@pytest.mark.parametrize(
    "arguments",
    [nested(65), json.loads(nested(65)), nested(100_000), "9" * 5000, "[1]", '{"a": "\\ud800"}', '{"a": NaN}'],
    ids=["too deep", "too deep an object", "beyond Python's limit", "too many digits", "no object", "half a character", "NaN"],
)
def test_arguments_nobody_could_carry_out_are_a_malformed_call(arguments):
    answer = ask_twice(completion(wire_call(arguments=arguments)))
    assert answer.tool_calls[0].error
    assert cast_vote(answer) == "malformed call"


def test_arguments_as_deep_as_allowed():
    assert ask_twice(completion(wire_call(arguments=nested(64)))).tool_calls[0].error is None
