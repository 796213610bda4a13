"""`composer replay --gate`: what `composer plan` prints with the same options, against real servers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
import typer
from in_process import invoke
from teacher_server import Reply, TeacherServer

from composer_replication.cli.plan_cmd import plan
from composer_replication.cli.replay_cmd import EXIT_INCOMPLETE, replay
from composer_replication.teachers import Ledger
from composer_replication.types.errors import BudgetExceededError, ConfigError

app = typer.Typer()
app.command("plan")(plan)
app.command("replay")(replay)

TEACHER = """
[[teachers]]
name = "{name}"
model = "{name}"
base_url = "{url}"
api_key_env = ""
usd_per_million_input = 0.0
usd_per_million_output = {usd}
max_tokens = 100
max_retries = 0
max_concurrency = 1
"""
PRICES = {"cheap": 100.0, "big": 1000.0, "huge": 1000.0}
GATE = ("--gate", "cascade", "--uncertain", 0.5, "--audit", 0.2, "--seed", 1)
OWN, OTHER = "own.py", "other.py"


def run(*arguments):
    return invoke(app, *arguments)


def say(body, number):
    """The cheap teacher does as the student did at every third state; everybody else agrees on another file."""
    agrees = body["model"] == "cheap" and int(body["messages"][-1]["content"]) % 3 == 0
    return Reply(calls=[("read_file", {"path": OWN if agrees else OTHER})], cost=0.001)


def asked(requests):
    return sorted((b["model"], int(b["messages"][-1]["content"])) for b in requests)


@pytest.fixture
def files(tmp_path):
    """Writes 20 states of rising entropy and three teachers; gives the arguments both commands have in common."""
    rows = [
        {
            "state_id": f"s{i}",
            "messages": [{"role": "user", "content": str(i)}],
            "student_action": json.dumps({"name": "read_file", "arguments": {"path": OWN}}),
            "student_entropy": float(i),
        }
        for i in range(20)
    ]
    (tmp_path / "states.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write(server, names=tuple(PRICES)):
        tables = [TEACHER.format(name=name, url=server.base_url, usd=PRICES[name]) for name in names]
        (tmp_path / "teachers.toml").write_text("".join(tables))
        return tmp_path / "states.jsonl", "--teachers", tmp_path / "teachers.toml"

    return write


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_the_plan_prints_is_what_is_asked_and_it_is_asked_once(files, tmp_path):
    out = tmp_path / "out"
    with TeacherServer(say) as server:
        common = (*files(server), *GATE)
        planned = json.loads(run("plan", *common, "--json").stdout)
        first = run("replay", *common, "--out", out, "--max-usd", 50, "--json")
        assert first.exit_code == 0
        seen, spend = asked(server.requests), json.loads(first.stdout)
        decided, told = rows_of(out / "decisions.jsonl"), rows_of(out / "answers.jsonl")
        again = run("replay", *common, "--out", out, "--max-usd", 50)
        assert len(server.requests) == len(seen)
    cheap = {i for name, i in seen if name == "cheap"}
    dear = {i for name, i in seen if name == "big"}
    assert [i for name, i in seen if name == "huge"] == sorted(dear)
    lines = {line["teacher"]: line["answers"] for line in planned["teachers"]}
    assert [t["asked"] for t in spend["teachers"]] == [len(cheap), len(dear), len(dear)]
    assert lines["cheap"]["low"] == lines["cheap"]["high"] == len(cheap)
    assert lines["big"]["low"] < len(dear) < lines["big"]["high"] == len(cheap)
    assert planned["reasons"] == spend["gate"]["first"]
    assert {i for i in range(10, 20) if i % 3} <= dear < cheap
    assert {int(row["state_id"][1:]) for row in decided if row["first"]} == cheap
    assert {int(row["state_id"][1:]) for row in decided if row["second"]} == dear
    assert [row["state_id"] for row in decided] == [f"s{i}" for i in range(20)]
    assert {(a["teacher"], a["question_id"]) for a in told} == {(name, f"s{i}") for name, i in seen}
    assert rows_of(out / "decisions.jsonl") == decided
    assert [(a["teacher"], a["content"]) for a in rows_of(out / "answers.jsonl")] == [(a["teacher"], a["content"]) for a in told]
    assert f"replay {len(cheap)} of 20 states through cheap" in again.output
    assert f"replay {len(dear)} of 20 states through big, huge" in again.output
    assert spend["gate"]["first"] == {"high entropy": 10, "audit": len(cheap) - 10}
    assert re.search(
        rf"asked first: {len(cheap) - 10} audit, 10 high entropy; then: .* the cheap teacher does not agree", again.output
    )
    missed = spend["gate"]["missed"]
    assert 0 < missed["found"] == missed["drawn"] == sum(row["second"] == ["audit"] for row in decided)
    assert f"the audit asked about {missed['drawn']} of {missed['population']} states" in again.output
    assert f"so about {missed['found'] / 0.2:.0f} would" in again.output


def test_with_the_known_share_of_disagreement_the_plan_is_the_bill(files, tmp_path):
    """Every answer costs 5 tokens; the cheap teacher disagrees at 7 of the 10 most uncertain states."""
    priced = {name: 5 * usd / 1e6 for name, usd in PRICES.items()}

    def charge(body, number):
        return Reply(calls=say(body, number).calls, cost=priced[body["model"]], completion_tokens=5)

    with TeacherServer(charge) as server:
        common = (*files(server), "--gate", "cascade", "--uncertain", 0.5, "--audit", 0, "--cheap", "cheap")
        planned = json.loads(run("plan", *common, "--disagrees", 0.7, "--answer-tokens", 5, "--json").stdout)
        done = run("replay", *common, "--out", tmp_path / "out", "--max-usd", 50, "--json")
    spend = json.loads(done.stdout)
    assert spend["gate"]["second"] == {"the cheap teacher does not agree": 7}
    assert spend["gate"]["missed"] is None
    assert planned["usd"]["expected"] == pytest.approx(spend["paid_usd"])


def test_the_cap_holds_for_both_tiers_and_a_higher_one_asks_the_rest(files, tmp_path):
    """A dear answer may cost 10 cents and costs 5; a cheap one a cent."""

    def charge(body, number):
        return Reply(calls=say(body, number).calls, cost=0.01 if body["model"] == "cheap" else 0.05)

    with TeacherServer(charge) as server:
        common = ("replay", *files(server), "--gate", "sweep", "--audit", 0, "--out", tmp_path / "out", "--json")
        with pytest.raises(BudgetExceededError):
            run(*common, "--max-usd", 0.001)
        assert server.requests == []
        capped = run(*common, "--max-usd", 0.8)
        assert capped.exit_code == EXIT_INCOMPLETE
        first, *others = json.loads(capped.stdout)["teachers"]
        assert (first["asked"], first["answered"], [t["asked"] for t in others]) == (20, 20, [13, 13])
        assert sum(t["answered"] + t["failed"]["over budget"] for t in others) == 26
        assert 0.2 < json.loads(capped.stdout)["paid_usd"] <= 0.8
        before = len(server.requests)
        assert run(*common, "--max-usd", 5).exit_code == 0
        assert len(server.requests) == 20 + 26 == len(set(asked(server.requests)))
        assert before < 46
    with Ledger(tmp_path / "out" / "ledger.sqlite") as ledger:
        assert ledger.spent_usd == pytest.approx(20 * 0.01 + 26 * 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["cheap", "huge"])
def test_killed_in_either_tier_it_goes_on_where_it_was(files, tmp_path, tier):
    stuck, release = threading.Event(), threading.Event()

    def answer(body, number):
        def hold():
            if body["model"] == tier and not release.is_set() and sum(b["model"] == tier for b in server.answered) >= 3:
                stuck.set()
                release.wait()

        return Reply(calls=say(body, number).calls, cost=0.001, before=hold)

    with TeacherServer(answer) as server:
        common = [str(a) for a in ("replay", *files(server), *GATE, "--max-usd", 50, "--json", "--out")]
        command = [sys.executable, "-c", "from composer_replication.cli import main; main()", *common, str(tmp_path / "out")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            stuck.wait()
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        with Ledger(tmp_path / "out" / "ledger.sqlite") as ledger:
            kept = ledger.num_answers
        release.set()
        spend = json.loads(run(*common, tmp_path / "out").stdout)
        whole = json.loads(run(*common, tmp_path / "whole").stdout)
    assert kept >= 3
    assert sum(t["from_cache"] for t in spend["teachers"]) == kept
    assert spend["gate"] == whole["gate"]
    assert (tmp_path / "out" / "decisions.jsonl").read_text() == (tmp_path / "whole" / "decisions.jsonl").read_text()
    assert spend["paid_usd"] == pytest.approx(whole["paid_usd"])


def test_without_the_gate_everybody_is_asked_and_no_decision_is_left(files, tmp_path):
    with TeacherServer(say) as server:
        common = ("replay", *files(server), "--out", tmp_path / "out", "--max-usd", 50)
        run(*common, *GATE)
        assert (tmp_path / "out" / "decisions.jsonl").is_file()
        done = run(*common, "--json")
        assert len(server.requests) == len(set(asked(server.requests))) == 60
    assert "gate" not in json.loads(done.stdout)
    assert not (tmp_path / "out" / "decisions.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gate", "cascade", "--cheap", "nobody"), "the gate asks nobody first, and there is no such teacher"),
        (("--gate", "cascade", "--audit", 2), "the gate's audit is 2.0"),
        (("--audit", 0.2), "--audit says how a gate decides, and there is none"),
        (("--no-findings",), "--findings says how"),
        (("--cheap", "cheap"), "--cheap says how"),
        (("--reach", 7), "--reach says how"),
    ],
)
def test_options_that_mean_nothing_are_named(files, tmp_path, options, message):
    with TeacherServer(say) as server:
        with pytest.raises(ConfigError, match=message):
            run("replay", *files(server), "--out", tmp_path / "out", "--max-usd", 1, *options)
        assert server.requests == []


@pytest.mark.parametrize("command", [("plan",), ("replay", "--out", "out", "--max-usd", 1)])
def test_a_gate_needs_two_teachers(files, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    with TeacherServer(say) as server, pytest.raises(ConfigError, match="name at least two teachers"):
        run(*command, *files(server, names=("cheap",)), *GATE, "--cheap", "cheap")
