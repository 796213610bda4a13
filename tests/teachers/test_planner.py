"""What is planned, against what real servers that count and cache tokens then charge."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import re

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from teacher_server import Reply, TeacherServer
from typer.testing import CliRunner

from composer_replication.cli.plan_cmd import plan as plan_command
from composer_replication.teacher_replay import replay_in_tiers, replay_trace
from composer_replication.teachers import (
    Failure,
    Gate,
    Ledger,
    Question,
    ReplayStep,
    Tariff,
    Teacher,
    bill,
    measured,
    plan,
    warn_of_cap,
)
from composer_replication.teachers.gate_steps import steps_of
from composer_replication.teachers.planner import EXPECTED, HIGH, LOW, Range
from composer_replication.teachers.tariff import window_tariff
from composer_replication.types.errors import BudgetExceededError, ConfigError

PRICES = {"usd_per_million_input": 5.0, "usd_per_million_output": 25.0, "usd_per_million_cache_read": 0.5}
OWN = '{"name": "read_file", "arguments": {"path": "own.py"}}'
WORDS = "the function parses a date and returns None where the text has no year; see tests/test_dates.py::test_short\n"


def tokens(messages):
    """A tokenizer of another kind than a count of bytes: words, and every other character by itself."""
    return [len(re.findall(r"\w+|[^\w\s]", json.dumps(m))) + 3 for m in messages]


class Endpoint:
    """Counts tokens, charges its prices, and reads from its cache the longest beginning that it was sent within `reach` steps."""

    def __init__(self, *, answer_tokens=200, agrees=lambda sent: False, reach=1000):
        self.seen: dict[str, list] = {}
        self.answer_tokens = answer_tokens
        self.agrees = agrees
        self.reach = reach

    def __call__(self, body, number):
        sent = body["messages"]
        known = self.seen.setdefault(body["model"], [])
        recent = (old for old in known if 0 <= len(sent) - len(old) <= 2 * self.reach)
        shared = max((len(old) for old in recent if sent[: len(old)] == old), default=0)
        known.append(sent)
        cached, prompt = sum(tokens(sent[:shared])), sum(tokens(sent))
        usd = ((prompt - cached) * 5.0 + cached * 0.5 + self.answer_tokens * 25.0) / 1e6
        path = "own.py" if body["model"] == "cheap" and self.agrees(sent) else "other.py"
        return Reply(calls=[("read_file", {"path": path})], cost=usd, prompt_tokens=prompt, completion_tokens=self.answer_tokens)


def states(traces=3, turns=12, opening=20):
    found = []
    for t in range(traces):
        messages = [{"role": "system", "content": WORDS * opening}, {"role": "user", "content": f"task {t}: " + WORDS}]
        for i in range(turns):
            found.append(
                {
                    "state_id": f"t{t}#{i}",
                    "trajectory_id": f"t{t}",
                    "turn": i,
                    "messages": list(messages),
                    "student_action": OWN,
                    "student_entropy": ((7 * i + t) % turns) / turns,
                }
            )
            messages += [{"role": "assistant", "content": f"step {i}"}, {"role": "user", "content": WORDS * (3 + i % 4)}]
    return found


def teachers(server, *names, **changes):
    fields = {"base_url": server.base_url, "api_key_env": None, "max_retries": 0, **PRICES, **changes}
    return [Teacher(name=n, model=n, **fields) for n in names]


def test_the_plan_is_what_real_servers_charge():
    """Token counts from a pilot on one trace; the plan for all of them meets the bill, without a gate and with one."""
    given = states()
    with TeacherServer(Endpoint()) as server:
        asked = teachers(server, "a", "b")
        pilot = asyncio.run(replay_trace(given[:12], asked, None))
    steps = steps_of(given)
    known = dataclasses.replace(measured(EXPECTED, steps, pilot), hit_rate=1.0)
    assert known.answer_tokens == 200
    planned = plan(steps, first=asked, scenarios=(known, known, known))
    with TeacherServer(Endpoint()) as server, Ledger() as ledger:
        asyncio.run(replay_trace(given, teachers(server, "a", "b"), None, ledger=ledger))
        assert planned.usd.expected == pytest.approx(ledger.spent_usd, rel=0.03)
        cold = dataclasses.replace(known, hit_rate=0.0)
        assert plan(steps, first=asked, scenarios=(cold,) * 3).usd.expected > 1.5 * ledger.spent_usd
    gate = Gate(rule="cascade", uncertain=0.5, audit=0.1)
    agrees = {3, 5, 8}
    with TeacherServer(Endpoint(agrees=lambda sent: len(sent) // 2 in agrees)) as server, Ledger() as ledger:
        cheap, *dear = teachers(server, "cheap", "a", "b")
        found = asyncio.run(replay_in_tiers(given, cheap, dear, None, gate=gate, ledger=ledger))
        first = [d for d in found.first if d.reasons and d.reasons != ("audit",)]
        second = [d for d in found.second if "the cheap teacher does not agree" in d.reasons]
        seen = dataclasses.replace(known, disagrees=len(second) / len(first))
        assert 0.5 < seen.disagrees < 1.0
        tiered = plan(steps, first=[cheap], second=dear, gate=gate, scenarios=(LOW, seen, HIGH))
        assert tiered.usd.expected == pytest.approx(ledger.spent_usd, rel=0.1)
        assert tiered.teachers[0].usd.expected == pytest.approx(ledger.spent_by_teacher()["cheap"], rel=0.03)
        assert tiered.usd.expected < planned.usd.expected


@pytest.mark.slow
def test_windows_around_what_is_escalated_are_planned_for():
    """Every combination of five answers of the cheap teacher comes once, so it disagrees at half of the states, in a world whose
    caches look back one step: the plan and the bill of the real replay are the same expectation."""
    turns, reach = 5, 1
    given = states(traces=2**turns, turns=turns, opening=60)

    def agrees(sent):
        trace, turn = int(re.match(r"task (\d+)", sent[1]["content"])[1]), len(sent) // 2 - 1
        return bool(trace >> turn & 1)

    gate = Gate(rule="sweep", audit=0.0)
    with TeacherServer(Endpoint(agrees=agrees, answer_tokens=100, reach=reach)) as server, Ledger() as ledger:
        cheap, dear = teachers(server, "cheap", "dear", max_tokens=100)
        pilot = asyncio.run(replay_trace(given[:turns], [dear], None))
        known = dataclasses.replace(measured(EXPECTED, steps_of(given), pilot), hit_rate=1.0, disagrees=0.5)
        planned = plan(steps_of(given), first=[cheap], second=[dear], gate=gate, scenarios=(known,) * 3, reach=reach).teachers
        found = asyncio.run(replay_in_tiers(given, cheap, [dear], None, gate=gate, ledger=ledger, reach=reach))
        spent = ledger.spent_by_teacher()
    windows = sum(d.reasons == ("window",) for d in found.second)
    assert windows >= 10
    assert planned[0].usd.expected == pytest.approx(spent["cheap"], rel=0.02)
    assert planned[1].usd.expected == pytest.approx(spent["dear"], rel=0.02)
    assert planned[1].answers.expected == pytest.approx(len(given) / 2 + windows)


def test_the_default_range_holds_what_real_servers_charge():
    given = states()
    for answer_tokens in (120, 1200):
        with TeacherServer(Endpoint(answer_tokens=answer_tokens)) as server, Ledger() as ledger:
            asked = teachers(server, "a")
            asyncio.run(replay_trace(given, asked, None, ledger=ledger))
            planned = plan(steps_of(given), first=asked)
            assert planned.usd.low < ledger.spent_usd < planned.usd.high
            assert planned.usd.low < planned.usd.expected < planned.usd.high


def test_the_cap_it_names_lets_every_call_through_and_a_little_less_does_not():
    """Six calls of half a cent, one after the other, and a tenth of a dollar is held for each."""
    given = states(traces=1, turns=6)
    known = dataclasses.replace(EXPECTED, answer_tokens=200)
    with TeacherServer(lambda body, number: Reply(content="x", cost=200 * 25.0 / 1e6)) as server:
        free = {"usd_per_million_input": 0.0, "usd_per_million_cache_read": 0.0}
        asked = [t.model_copy(update=free) for t in teachers(server, "a")]
        planned = plan(steps_of(given), first=asked, scenarios=(known, known, known))
        assert planned.usd.high == pytest.approx(0.03)
        questions = [Question(question_id="q", messages=s["messages"]) for s in given]
        assert planned.call_usd == max(asked[0].most_expensive(q) for q in questions)
        enough = asyncio.run(replay_trace(given, asked, planned.ample_usd))
        assert [a.failure for a in enough] == [None] * 6
        short = asyncio.run(replay_trace(given, asked, planned.ample_usd - 0.01))
        assert [a.failure for a in short] == [None] * 5 + [Failure.BUDGET]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 5000), st.booleans(), st.sampled_from([0.0, 0.3, 1.0])), min_size=1, max_size=6),
    reach=st.none() | st.integers(1, 3),
)
def test_the_expectation_is_the_mean_over_all_outcomes(sizes, reach):
    steps = [ReplayStep(state_id=str(i), trace_id="t", prompt_bytes=b, extends=e) for i, (b, e, _) in enumerate(sizes)]
    chances = {str(i): c for i, (_, _, c) in enumerate(sizes)}
    tariff = Tariff(fresh=5.0, answer=25.0, cache_read=0.5, cache_write=6.25, hit_rate=0.9, reach=reach)
    mean = 0.0
    for outcome in range(1 << len(steps)):
        asked = [bool(outcome >> i & 1) for i in range(len(steps))]
        weight, usd, last = 1.0, 0.0, None
        for i, step in enumerate(steps):
            weight *= chances[str(i)] if asked[i] else 1 - chances[str(i)]
            last = last if step.extends else None
            if asked[i]:
                warm = last is not None and (reach is None or i - last <= reach)
                usd += tariff.usd(step.prompt_bytes, steps[last].prompt_bytes if warm else 0)
                last = i
        mean += weight * usd
    assert bill(steps, chances, tariff).usd == pytest.approx(mean)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 300_000), st.booleans(), st.sampled_from([0.0, 1.0, None]), st.booleans()),
        min_size=1,
        max_size=7,
    ),
    rule=st.sampled_from(["flat", "cascade", "sweep", "any"]),
    audit=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 9),
    reach=st.none() | st.integers(1, 2),
)
def test_what_is_planned_is_the_mean_over_all_that_the_cheap_teacher_may_say(sizes, rule, audit, seed, reach):
    """Windows, audits and all: each outcome is what the gate itself asks then."""
    steps = [
        ReplayStep(
            state_id=f"{seed}#{i}", trace_id="t", prompt_bytes=b, extends=e, entropy=entropy, findings=("timeout",) * found
        )
        for i, (b, e, entropy, found) in enumerate(sizes)
    ]
    gate = Gate(rule=rule, uncertain=0.5, audit=audit, seed=seed)
    cheap, *dear = [
        Teacher(name=n, model=n, usd_per_million_cache_write=w, **PRICES) for n, w in zip("xyz", (5, 6, 7), strict=True)
    ]
    scenario = dataclasses.replace(EXPECTED, disagrees=0.3, hit_rate=0.9)
    lines = plan(steps, first=[cheap], second=dear, gate=gate, scenarios=(scenario,) * 3, reach=reach).teachers
    first = gate.first(steps, window_tariff([cheap], reach))
    asked = [d.state_id for d in first if d.reasons]
    usd, answers = dict.fromkeys("yz", 0.0), 0.0
    for outcome in itertools.product((True, False), repeat=len(asked)):
        agrees = {name for name, agreed in zip(asked, outcome, strict=True) if agreed}
        weight = 0.7 ** len(agrees) * 0.3 ** (len(asked) - len(agrees))
        second = {d.state_id: 1.0 for d in gate.second(steps, first, agrees, window_tariff(dear, reach)) if d.reasons}
        answers += weight * len(second)
        for teacher in dear:
            tariff = Tariff.of(teacher, hit_rate=0.9, reach=reach)
            usd[teacher.name] += weight * bill(steps, second, tariff).usd
    assert {line.teacher: line.usd.expected for line in lines[1:]} == pytest.approx(usd)
    assert lines[1].answers.expected == pytest.approx(answers)


def test_tokens_grow_with_the_square_of_the_steps():
    def sent(n):
        return bill(
            [ReplayStep(state_id=str(i), trace_id="t", prompt_bytes=1000 * (i + 1), extends=i > 0) for i in range(n)],
            {str(i): 1.0 for i in range(n)},
            Tariff(fresh=1.0, answer=0.0, cache_read=1.0, cache_write=1.0, bytes_per_token=1.0),
        ).prompt_tokens

    assert sent(100) == 1000 * 100 * 101 / 2


def test_a_cap_below_the_expectation_is_refused_and_one_below_the_most_is_warned_of():
    steps = steps_of(states())
    planned = plan(steps, first=[Teacher(name="a", model="a", **PRICES)])
    assert warn_of_cap(planned, None) is None
    enough = planned.usd.expected + planned.call_usd
    assert warn_of_cap(planned, planned.ample_usd) is None
    assert "may need up to" in warn_of_cap(planned, enough)
    small = dataclasses.replace(planned, usd=Range(low=1e-5, expected=2.34e-5, high=0.5), call_usd=1e-6)
    told = r"\$0\.0000 is left .* to need \$0\.000024, \$0\.0000010 of it held .* \(it costs \$0\.000010 to \$0\.5000\)"
    with pytest.raises(BudgetExceededError, match=told):
        warn_of_cap(small, 0.0)
    with pytest.raises(BudgetExceededError, match="is expected to need"):
        warn_of_cap(planned, enough * 0.99)
    with pytest.raises(BudgetExceededError):
        warn_of_cap(planned, planned.ample_usd, spent_usd=planned.ample_usd)
    with pytest.raises(ConfigError, match="has no price"):
        plan(steps, first=[Teacher(name="a", model="a")])


def test_the_command_refuses_what_a_replay_refuses(command, tmp_path):
    states_file, teachers_file = tmp_path / "states.jsonl", tmp_path / "teachers.toml"
    whole = states_file.read_text()
    states_file.write_text(whole + whole.splitlines()[0] + "\n")
    assert "states.jsonl: two states have the state_id 't0#0'" in str(command().exception)
    states_file.write_text(whole)
    teachers_file.write_text(TEACHERS.replace('"big"', '"small"'))
    assert "two teachers have one name" in str(command().exception)


def test_the_command_warns_of_states_without_tools_and_names_a_cap_that_does(command, tmp_path):
    shown = command()
    assert "warning: 36 of 36 states name no tools" in shown.output
    planned = json.loads(command("--json").stdout.splitlines()[-1])
    assert f"a cap of ${planned['usd']['high'] + planned['call_usd']:.4f} lets every call through" in shown.output
    tools = [{"type": "function", "function": {"name": "read_file"}}]
    lines = [json.dumps(json.loads(line) | {"tools": tools}) for line in (tmp_path / "states.jsonl").read_text().splitlines()]
    (tmp_path / "states.jsonl").write_text("\n".join(lines))
    assert "name no tools" not in command().output


TEACHERS = """
[[teachers]]
name = "small"
model = "small"
usd_per_million_input = 0.28
usd_per_million_output = 0.42

[[teachers]]
name = "big"
model = "big"
usd_per_million_input = 5.0
usd_per_million_output = 25.0
usd_per_million_cache_read = 0.5
"""


@pytest.fixture
def command(tmp_path):
    (tmp_path / "teachers.toml").write_text(TEACHERS)
    given = states()
    del given[0]["student_entropy"]
    (tmp_path / "states.jsonl").write_text("".join(json.dumps(s) + "\n" for s in given))
    app = typer.Typer()
    app.command()(plan_command)

    def run(*options):
        words = [str(tmp_path / "states.jsonl"), "--teachers", str(tmp_path / "teachers.toml"), *options]
        return CliRunner().invoke(app, words, terminal_width=200)

    return run


def test_the_command_prints_a_line_per_teacher_and_the_total(command):
    done = command("--json")
    assert done.exit_code == 0, done.output
    whole = json.loads(done.stdout.splitlines()[-1])
    assert [(t["teacher"], t["tier"], t["answers"]["expected"]) for t in whole["teachers"]] == [
        ("small", 1, 36.0),
        ("big", 1, 36.0),
    ]
    assert whole["usd"]["expected"] == pytest.approx(sum(t["usd"]["expected"] for t in whole["teachers"]))
    assert whole["teachers"][0]["cached_tokens"]["low"] == 0
    assert whole["teachers"][1]["cached_tokens"]["low"] > 0
    shown = command("--gate", "cascade", "--uncertain", "0.5", "--audit", "0")
    assert "expected to cost $" in shown.output
    assert "1 states have no entropy" in shown.output
    gated = json.loads(command("--gate", "cascade", "--uncertain", "0.5", "--audit", "0", "--json").stdout.splitlines()[-1])
    assert [(t["teacher"], t["tier"]) for t in gated["teachers"]] == [("small", 1), ("big", 2)]
    assert gated["usd"]["expected"] < whole["usd"]["expected"]
    assert gated["reasons"] == {"high entropy": 18, "entropy unknown": 1}
    turned = json.loads(command("--gate", "flat", "--cheap", "big", "--json").stdout.splitlines()[-1])
    assert [(t["teacher"], t["tier"]) for t in turned["teachers"]] == [("big", 1), ("small", 2)]


def test_the_command_ends_with_the_code_of_a_budget(command):
    refused = command("--max-usd", "0.0001")
    assert isinstance(refused.exception, BudgetExceededError)
    assert refused.exception.exit_code == 6
    assert "big" in refused.output
    whole = json.loads(command("--json").stdout.splitlines()[-1])
    warned = command("--max-usd", str(whole["usd"]["expected"] + whole["call_usd"] + 0.001))
    assert warned.exit_code == 0
    assert "warning: the cap leaves" in warned.output
    assert isinstance(command("--gate", "cascade", "--cheap", "nobody").exception, ConfigError)
    assert isinstance(command("--gate", "cascade", "--audit", "2").exception, ConfigError)
