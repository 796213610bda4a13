"""When questions are asked: a teacher's rate and pauses, traces step by step, prompts marked for a cache, subsets of teachers."""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
import threading

import pytest
from asking import ask, questions, teacher
from teacher_server import Reply, TeacherServer, question_text

from composer_replication.config import TeacherConfig
from composer_replication.teachers import Ledger, Question, Teacher, TeacherPool
from composer_replication.teachers.pace import RateLimiter
from composer_replication.types.errors import ConfigError


class TimelessLoop(asyncio.SelectorEventLoop):
    """Its clock jumps to the next thing that is due: minutes pass in no time, and exactly."""

    def __init__(self):
        super().__init__(selectors.DefaultSelector())
        self.now = 0.0
        inner = self._selector.select

        def select(timeout=None):
            ready = inner(0)
            if not ready and timeout:
                self.now += timeout
            return ready

        self._selector.select = select

    def time(self):
        return self.now


def sent_at(pace, count, *, pause=None):
    """Seconds at which `count` requests that want to go at once are sent; `pause` is (when, for how long)."""

    async def run():
        times = []

        async def one():
            await pace.turn()
            times.append(asyncio.get_running_loop().time())

        async def pauses():
            await asyncio.sleep(pause[0])
            pace.pause(pause[1])

        await asyncio.gather(*(one() for _ in range(count)), *([pauses()] if pause else []))
        return times

    with asyncio.Runner(loop_factory=TimelessLoop) as runner:
        return runner.run(run())


def test_a_rate_spaces_requests_evenly():
    assert sent_at(RateLimiter(teacher("http://x", requests_per_minute=30.0)), 4) == pytest.approx([0.0, 2.0, 4.0, 6.0])
    assert sent_at(RateLimiter(teacher("http://x")), 4) == [0.0] * 4


def test_nobody_asks_during_a_pause():
    times = sent_at(RateLimiter(teacher("http://x", requests_per_minute=60.0)), 4, pause=(0.5, 10.0))
    assert times[0] == 0.0
    assert min(times[1:]) >= 10.5
    assert all(b - a >= 1.0 - 1e-9 for a, b in itertools.pairwise(times))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_is_a_number_of_requests(rate):
    with pytest.raises(ConfigError, match="requests_per_minute"):
        teacher("http://x", requests_per_minute=rate)


def test_a_storm_pauses_the_teacher_and_not_the_other():
    refused = threading.Event()

    def answer(body, number):
        if body["model"] == "model-a" and not refused.is_set():
            refused.set()
            return Reply(status=429, headers={"Retry-After": "0.5"})
        return Reply(content=body["model"])

    with TeacherServer(answer) as server:
        answers = ask([teacher(server, "a", max_retries=1, max_concurrency=1), teacher(server, "b")], questions(3))
        assert [a.error for a in answers] == [None] * 6
        assert len(server.requests) == 7


def trace(name, steps, seed=0):
    """The steps of a trace in any order."""
    made = [
        Question(question_id=f"{name}{i}", messages=[{"role": "user", "content": f"{name} {i}"}], trace=name, step=i)
        for i in range(steps)
    ]
    random.Random(seed).shuffle(made)
    return made


def test_a_trace_is_asked_step_by_step_and_traces_at_the_same_time():
    """Two traces and two teachers meet at every step; a teacher never has two steps of one trace before it."""
    together = threading.Barrier(4, timeout=60)
    under_way, mutex, most = {}, threading.Lock(), []

    def answer(body, number):
        line = body["model"], question_text(body).split()[0]

        def meet():
            with mutex:
                under_way[line] = under_way.get(line, 0) + 1
                most.append(under_way[line])
            together.wait()
            with mutex:
                under_way[line] -= 1

        return Reply(content="x", before=meet)

    asked = trace("s", 4) + trace("t", 4, seed=1)
    with TeacherServer(answer) as server:
        answers = ask([teacher(server, "a"), teacher(server, "b")], asked)
        order = [(b["model"], *question_text(b).split()) for b in server.requests]
    assert [a.question_id for a in answers] == [q.question_id for q in asked for _ in "ab"]
    assert set(most) == {1}
    for model in ("model-a", "model-b"):
        for name in "st":
            assert [int(step) for m, n, step in order if (m, n) == (model, name)] == [0, 1, 2, 3]


def test_a_trace_goes_on_after_a_step_that_failed():
    with TeacherServer(lambda body, n: Reply(status=400) if n == 1 else Reply(content="x")) as server:
        answers = ask([teacher(server)], sorted(trace("t", 3), key=lambda q: q.step))
    assert [a.error is None for a in answers] == [True, False, True]


def test_prompts_are_marked_where_configured():
    call = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c0", "content": "done"},
        {"role": "assistant", "content": "fine"},
    ]
    with TeacherServer(lambda body, n: Reply(content="x")) as server, Ledger() as ledger:
        for marked in (True, False):
            ask(
                [teacher(server, mark_cache=marked)], [Question(question_id="q", messages=messages, sample=marked)], ledger=ledger
            )
        with_marks, without = server.requests
    mark = {"cache_control": {"type": "ephemeral"}}
    assert with_marks["messages"][0]["content"] == [{"type": "text", "text": "be brief", **mark}]
    assert with_marks["messages"][3]["content"] == [{"type": "text", "text": "done", **mark}]
    assert [m["content"] for m in without["messages"]] == ["be brief", "go", "", "done", "fine"]
    assert str(with_marks).count("cache_control") == 2


def test_some_of_the_teachers_are_asked():
    with TeacherServer(lambda body, n: Reply(content=body["model"])) as server, Ledger() as ledger:

        async def run():
            seen = []
            async with TeacherPool([teacher(server, n) for n in "abc"], ledger=ledger, max_total_usd=None) as pool:
                first = await pool.ask(questions(1), teachers=["c", "a"], on_answer=seen.append)
                second = await pool.ask(questions(2), on_answer=seen.append)
                with pytest.raises(ConfigError, match="no teacher 'd'"):
                    await pool.ask(questions(1), teachers=["d"])
                assert await pool.ask(questions(1), teachers=[]) == []
            return first, second, seen

        first, second, seen = asyncio.run(run())
    assert [a.content for a in first] == ["model-c", "model-a"]
    assert [(a.teacher, a.cached) for a in second[:3]] == [("a", True), ("b", False), ("c", True)]
    assert len(seen) == 8
    assert [a.teacher for a in seen[2:4]] == ["a", "c"]


def test_a_teacher_is_what_its_table_says():
    config = TeacherConfig(
        name="t", model="m", api_key_env="", temperature="endpoint", requests_per_minute=5, timeout_s=7, max_retries=1
    )
    assert Teacher.of(config) == Teacher(
        name="t", model="m", api_key_env="", temperature=None, requests_per_minute=5, timeout_s=7, max_retries=1
    )
    assert Teacher.of(TeacherConfig(name="t", model="m")) == Teacher(name="t", model="m")
