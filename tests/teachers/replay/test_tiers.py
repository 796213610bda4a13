"""Replay in tiers, against real servers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest
from teacher_server import Reply, TeacherServer

from composer_replication.teacher_replay import extract_dpo_pairs, replay_in_tiers, replay_trace
from composer_replication.teachers import BUDGET, Gate, Ledger, Teacher, cheapest
from composer_replication.teachers.gate_steps import steps_of, with_evidence
from composer_replication.traces import TraceState
from composer_replication.types import Finding
from composer_replication.types.errors import BudgetExceededError, ConfigError, TeacherError

OWN = "student.py"


def read(path):
    return f'{{"name": "read_file", "arguments": {{"path": "{path}"}}}}'


def states(n, **extra):
    talk = [{"role": "user", "content": str(i)} for i in range(n)]
    return [
        TraceState(
            state_id=f"t#{i}",
            trajectory_id="t",
            turn=i,
            messages=talk[: i + 1],
            student_action=read(OWN),
            student_entropy=float(i),
            **extra,
        )
        for i in range(n)
    ]


def teacher(server, name, *, usd=0.0, **changes):
    fields = {"api_key_env": None, "usd_per_million_input": 0.0, "usd_per_million_output": usd, "max_retries": 0}
    return Teacher(**{"name": name, "model": name, "family": name, "base_url": server.base_url, **fields, **changes})


def answer(agreeing=(), right="fixed.py"):
    """The cheap teacher reads the student's file at the states it agrees about; everybody else reads another."""

    def say(body, number):
        agrees = body["model"] == "cheap" and int(body["messages"][-1]["content"]) in agreeing
        return Reply(calls=[("read_file", {"path": f"./{OWN}" if agrees else right})])

    return say


def asked(server):
    return sorted((b["model"], int(b["messages"][-1]["content"])) for b in server.requests)


def run(server, given, gate, **options):
    dear = [teacher(server, name, usd=10.0) for name in ("big", "huge")]
    return asyncio.run(
        replay_in_tiers(given, teacher(server, "cheap", usd=1.0), dear, options.pop("cap", None), gate=gate, **options)
    )


def test_the_dear_teachers_are_asked_where_the_cheap_one_does_not_agree():
    with TeacherServer(answer(agreeing={4, 5})) as server:
        found = run(server, states(6), Gate(rule="cascade", uncertain=0.5, audit=0.0))
        assert asked(server) == [("big", 3), ("cheap", 3), ("cheap", 4), ("cheap", 5), ("huge", 3)]
    assert [(a.question_id, a.teacher) for a in found.answers] == [
        ("t#3", "cheap"),
        ("t#3", "big"),
        ("t#3", "huge"),
        ("t#4", "cheap"),
        ("t#5", "cheap"),
    ]
    (pair,) = extract_dpo_pairs(states(6), found.answers)
    assert (pair["state_id"], pair["chosen"], pair["rejected"]) == ("t#3", read("fixed.py"), read(OWN))


def test_the_guides_call_form_takes_a_gate():
    with TeacherServer(answer(agreeing={0, 1, 2, 3, 5})) as server:
        teachers = [teacher(server, "big", usd=10.0), teacher(server, "cheap", usd=1.0)]
        gate = Gate(rule="sweep", audit=0.0)
        answers = asyncio.run(replay_trace(states=states(6), teachers=teachers, max_total_usd=5.0, gate=gate))
        assert asked(server) == [("big", 4), *(("cheap", i) for i in range(6))]
    assert [a.teacher for a in answers] == ["cheap"] * 5 + ["big", "cheap"]
    assert cheapest(teachers).name == "cheap"


def test_the_audit_reaches_both_what_is_not_asked_and_what_is_believed():
    with TeacherServer(answer(agreeing=set(range(40)))) as server:
        found = run(server, states(40), Gate(rule="cascade", uncertain=0.5, audit=0.3, seed=3))
        seen = asked(server)
    drawn = {int(state_id[2:]) for state_id in found.audit.drawn}
    assert found.audit.population == 40
    assert {i for model, i in seen if model == "big"} == drawn
    assert {i for model, i in seen if model == "cheap"} == drawn | set(range(20, 40))
    assert min(drawn) < 20 <= max(drawn)
    pairs = {p["state_id"] for p in extract_dpo_pairs(states(40), found.answers)}
    assert pairs == found.audit.drawn  # big and huge agree on another file everywhere
    missed = found.missed(pairs)
    assert missed.estimate == len(drawn) / 0.3
    assert missed.low <= 40 <= missed.high


def test_another_comparison_may_be_passed():
    with TeacherServer(answer()) as server:
        found = run(server, states(3), Gate(rule="sweep", audit=0.0), same=lambda state, answer: state["turn"] == 1)
    assert [bool(d.reasons) for d in found.second] == [True, False, True]


def test_an_outage_of_the_cheap_teacher_is_no_disagreement():
    def say(body, number):
        down = body["model"] == "cheap" and body["messages"][-1]["content"] == "1"
        return Reply(status=429) if down else Reply(calls=[("read_file", {"path": OWN})])

    with TeacherServer(say) as server:
        found = run(server, states(3), Gate(rule="sweep", audit=0.0), same=lambda state, answer: True)
    assert [bool(d.reasons) for d in found.second] == [False, False, False]
    assert sum(a.error is not None for a in found.answers) == 1
    assert found.audit.population == 2


def test_a_cheap_teacher_that_gives_no_answer_settles_nothing():
    def say(body, number):
        silent = body["model"] == "cheap" and body["messages"][-1]["content"] == "1"
        return Reply(status=400) if silent else Reply(calls=[("read_file", {"path": OWN})])

    with TeacherServer(say) as server:
        found = run(server, states(3), Gate(rule="sweep", audit=0.0), same=lambda state, answer: True)
    assert [bool(d.reasons) for d in found.second] == [False, True, False]


def test_one_cap_holds_for_both_tiers():
    """Every answer is booked at a cent; each call must fit under the cap at the most it can cost."""

    def say(body, number):
        return Reply(calls=[("read_file", {"path": "fixed.py"})], cost=0.01)

    with TeacherServer(say) as server, Ledger() as ledger:
        bound = {"usd": 1.0, "max_tokens": 10_000}  # a cent
        cheap, dear = teacher(server, "cheap", **bound), [teacher(server, n, **bound) for n in ("big", "huge")]
        gate = Gate(rule="sweep", audit=0.0)
        found = asyncio.run(replay_in_tiers(states(6), cheap, dear, 0.10, gate=gate, ledger=ledger))
        assert ledger.spent_usd <= 0.10 + 1e-9
        assert len(server.requests) == ledger.num_answers
        assert ledger.num_answers in (9, 10)  # a tenth cent may be a rounding error too much
        unpaid = [a for a in found.answers if a.error == BUDGET]
        assert len(found.answers) == 18
        assert len(unpaid) == 18 - ledger.num_answers
        again = asyncio.run(replay_in_tiers(states(6), cheap, dear, ledger.spent_usd, gate=gate, ledger=ledger))
        assert len(server.requests) == ledger.num_answers
        assert sum(a.error == BUDGET for a in again.answers) == len(unpaid)


def test_what_nothing_is_left_for_is_told_apart():
    with TeacherServer(answer()) as server:
        gate = Gate(rule="sweep", audit=0.0)
        cheap = teacher(server, "cheap", usd=0.0)
        dear = [teacher(server, "big", usd=10.0, max_tokens=1000)]
        found = asyncio.run(replay_in_tiers(states(2), cheap, dear, 0.001, gate=gate))
        assert [(a.teacher, a.error) for a in found.answers] == [("cheap", None), ("big", BUDGET)] * 2
        with pytest.raises(BudgetExceededError):
            asyncio.run(replay_in_tiers(states(2), dear[0], [cheap], 0.001, gate=gate))
        with pytest.raises(ConfigError, match="stands in both tiers"):
            asyncio.run(replay_in_tiers(states(2), cheap, [cheap], None, gate=gate))
        with pytest.raises(ConfigError, match="at least two teachers"):
            asyncio.run(replay_trace(states(2), [cheap], None, gate=gate))
        with pytest.raises(ConfigError, match="at least two teachers"):
            asyncio.run(replay_in_tiers(states(2), cheap, [], None, gate=gate))
    refusing = TeacherServer(lambda body, number: Reply(status=200 if body["model"] == "cheap" else 404, content="hm"))
    with refusing as server, pytest.raises(TeacherError, match="no teacher answered"):
        run(server, states(2), Gate(rule="sweep", audit=0.0))


def test_evidence_and_sizes_of_states():
    given = states(3)
    given[2]["messages"] = [{"role": "user", "content": "compacted"}]
    for state in given:
        del state["student_entropy"]
    marked = with_evidence(
        given,
        findings={"t": [Finding(kind="timeout", turn=1), Finding(kind="tests_failed", turn=1)]},
        entropies={"t": [0.5, None, 0.25]},
    )
    steps = steps_of(marked)
    assert [s.extends for s in steps] == [False, True, False]
    assert [s.findings for s in steps] == [(), ("timeout", "tests_failed"), ()]
    assert [s.entropy for s in steps] == [0.5, None, 0.25]
    assert steps[0].prompt_bytes < steps[1].prompt_bytes
    assert "findings" not in given[1]


REPLAYER = """
import asyncio, sys
from composer_replication.teacher_replay import replay_in_tiers
from composer_replication.teachers import Gate, Teacher
url, ledger, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
cheap, *dear = [Teacher(name=m, model=m, base_url=url, api_key_env=None, usd_per_million_input=0.0, usd_per_million_output=10.0,
                        max_concurrency=1, max_retries=0) for m in ("cheap", "big", "huge")]
states = [{"state_id": f"s{i}", "messages": [{"role": "user", "content": str(i)}], "student_entropy": float(i % 4),
           "student_action": '{"name": "read_file", "arguments": {"path": "student.py"}}'} for i in range(n)]
found = asyncio.run(replay_in_tiers(states, cheap, dear, 5.0, gate=Gate(rule="cascade", uncertain=0.5, audit=0.2), ledger=ledger))
assert all(a.error is None for a in found.answers)
sys.stdout.write(f"{len(found.answers)} {sum(not a.cached for a in found.answers)}")
"""


def replayer(server, ledger, n):
    done = subprocess.run([sys.executable, "-c", REPLAYER, server.base_url, str(ledger), str(n)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["cheap", "big"])
def test_killed_in_either_tier_and_repeated_it_asks_nothing_twice(tmp_path, tier):
    """After three answers of a tier the server holds its breath; the replayer is killed with a call under way, and repeated."""
    n = 16
    stuck, release = threading.Event(), threading.Event()

    def say(body, number):
        def hold():
            if body["model"] == tier and not release.is_set() and sum(b["model"] == tier for b in server.answered) == 3:
                stuck.set()
                release.wait()

        return Reply(calls=answer(agreeing=set(range(0, n, 3)))(body, number).calls, cost=0.001, before=hold)

    with TeacherServer(say) as server:
        command = [sys.executable, "-c", REPLAYER, server.base_url, str(tmp_path / "killed.sqlite"), str(n)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            stuck.wait()
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        with Ledger(tmp_path / "killed.sqlite") as ledger:
            kept = ledger.num_answers
        release.set()
        answers, bought = replayer(server, tmp_path / "killed.sqlite", n)
        assert kept + bought == answers
        assert replayer(server, tmp_path / "killed.sqlite", n) == [answers, 0]
        before = len(server.requests)
        assert replayer(server, tmp_path / "whole.sqlite", n) == [answers, answers]
        assert len(server.requests) - before == answers
        unkilled = sorted((b["model"], b["messages"][-1]["content"]) for b in server.requests[before:])
        assert len(set(unkilled)) == answers
        assert {(b["model"], b["messages"][-1]["content"]) for b in server.requests[:before]} == set(unkilled)
