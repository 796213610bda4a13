"""A judge for what nothing else compares: in Python, in a run's options, and from logs to pairs in one command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace

import pytest
from asking import teacher
from in_process import invoke
from teacher_server import Reply, TeacherServer, question_text

from composer_replication.actions.agreement import ActionComparison, SameAction
from composer_replication.cli import app
from composer_replication.config import RunConfig
from composer_replication.teachers import Ledger, TeacherAnswer
from composer_replication.teachers.mining.judged_mining import Judge, find_judged_disagreements
from composer_replication.teachers.mining.pair_mining import find_disagreements, scene_of
from composer_replication.trainer.preflight import _check_arms
from composer_replication.types import ToolCall, to_json
from composer_replication.types.errors import ConfigError

COMPOSER = "import sys; from composer_replication.cli import main; sys.argv[0] = 'composer'; main()"
ASKED = [{"role": "user", "content": "go"}]
STUDENT, TEACHERS = "sed -i '10d' a.py", "sed -i '12d' a.py"


def action(command):
    return json.dumps({"name": "bash", "arguments": {"command": command}})


def state(number=0, student=STUDENT):
    return {"state_id": f"s{number}", "messages": ASKED, "student_action": action(student), "tools": []}


def answers(number=0, command=TEACHERS):
    call = ToolCall(call_id="1", name="bash", arguments={"command": command})
    return [TeacherAnswer(question_id=f"s{number}", teacher=name, family=name, tool_calls=(call,)) for name in "ab"]


def mined(judge, *, scenes=scene_of):
    return asyncio.run(find_judged_disagreements([state()], answers(), 2, judge=judge, scenes=scenes))


def judge(server, folder, cap=5.0):
    return Judge(teacher=teacher(server), ledger=folder / "ledger.sqlite", max_total_usd=cap)


@pytest.mark.parametrize(("said", "pairs"), [("no", 1), ("yes", 0), ("perhaps", 0)])
def test_a_judge_decides_what_nothing_else_does(tmp_path, said, pairs):
    assert mined(None).dropped == {"undecided whether the student agrees": 1}
    with TeacherServer(lambda _body, _number: Reply(content=said, cost=0.01)) as server:
        found = mined(judge(server, tmp_path))
        assert len(found.pairs) == pairs
        assert len(server.requests) == 2, "in both orders"
        assert mined(judge(server, tmp_path)) == found
        assert len(server.requests) == 2, "and never again"
    if pairs:
        assert found.confidence["s0"] < 1.0
        assert json.loads(found.pairs[0]["chosen"])["arguments"]["command"] == TEACHERS


def test_a_judge_is_asked_about_nothing_that_is_decided(tmp_path):
    with TeacherServer(lambda _body, _number: Reply(content="no")) as server:
        found = asyncio.run(
            find_judged_disagreements([state(student="rm -rf src")], answers(command="ls"), 2, judge=judge(server, tmp_path))
        )
        assert (len(found.pairs), server.requests) == (1, [])


def test_the_sandbox_runs_nothing_twice_for_the_judge(tmp_path):
    runs = []

    def scenes(one):
        def run_both(left, right):
            runs.append((left, right))
            return ActionComparison(SameAction.UNDECIDED, "state", "no test tells")

        return replace(scene_of(one), run_both=run_both)

    plain = find_disagreements([state()], answers(), 2, scenes=scenes)
    before = len(runs)
    runs.clear()
    with TeacherServer(lambda _body, _number: Reply(content="no")) as server:
        found = mined(judge(server, tmp_path), scenes=scenes)
    assert (len(runs), found) == (before, plain), "what was carried out is not for a judge to say"


def test_without_a_judge_that_answers_the_other_pairs_stay_and_it_is_said(tmp_path, caplog):
    with TeacherServer(lambda _body, _number: Reply(content="no", cost=1.0)) as server:
        assert mined(judge(server, tmp_path, cap=0.1)) == mined(None)
        assert server.requests == []
    assert "1 comparisons stay undecided, as the judge answers nothing: no call fits under the cap" in caplog.text


def run(*arguments):
    return invoke(app, "pairs", *arguments)


def judge_file(folder, url, *names, file="judge.toml", in_flight=8):
    tables = [
        f'[[teachers]]\nname = "{name}"\nmodel = "{name}"\nbase_url = "{url}"\napi_key_env = ""\n'
        "usd_per_million_input = 1.0\nusd_per_million_output = 1.0\n"
        f"max_concurrency = {in_flight}\n"
        for name in names
    ]
    (folder / file).write_text("\n".join(tables))
    return folder / file


def test_extract_asks_the_first_teacher_of_a_file(tmp_path):
    states, told, out = tmp_path / "states.jsonl", tmp_path / "answers.jsonl", tmp_path / "pairs.jsonl"
    states.write_text(json.dumps(state()) + "\n")
    told.write_text("".join(json.dumps(to_json(answer)) + "\n" for answer in answers()))
    assert run("extract", states, told, "--out", out).exit_code == 9
    with TeacherServer(lambda _body, _number: Reply(content="no", cost=0.001)) as server:
        words = ("--judge", judge_file(tmp_path, server.base_url, "first", "second"), "--max-usd", "1")
        assert run("extract", states, told, "--out", out, *words).exit_code == 0
        assert {body["model"] for body in server.requests} == {"first"}
    assert len(out.read_text().splitlines()) == 1
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.spent_usd == pytest.approx(0.002)


def log_of(*sessions):
    """Lines of a log: a user's word and the command that the student runs upon it, for each session."""
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {}}}}}
    lines = []
    for word, command in sessions:
        call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}
        messages = [{"role": "user", "content": word}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        lines.append({"messages": [*messages, {"role": "tool", "tool_call_id": "c1", "content": "ok"}], "tools": [tool]})
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_from_logs_to_pairs_in_one_command(tmp_path):
    """A session whose only action is one that its teachers would not have taken. Repeated, the command resumes."""
    (tmp_path / "log.jsonl").write_text(log_of(("go", "rm -rf src")))

    def answer(body, _number):
        assert question_text(body) == "go"
        return Reply(calls=[("bash", {"command": "ls src"})], cost=0.001)

    with TeacherServer(answer) as server:
        words = (tmp_path / "log.jsonl", "--teachers", judge_file(tmp_path, server.base_url, "one", "two"))
        for _ in range(2):
            result = run("from-logs", *words, "--out", tmp_path / "out", "--max-usd", "1")
            assert result.exit_code == 0, result.output
        assert len(server.requests) == 2
    (pair,) = map(json.loads, (tmp_path / "out" / "pairs.jsonl").read_text().splitlines())
    assert (json.loads(pair["chosen"]), json.loads(pair["rejected"])) == (
        json.loads(action("ls src")),
        json.loads(action("rm -rf src")),
    )


def test_from_logs_makes_pairs_of_what_was_answered(tmp_path):
    """One state's question is refused, as too long ones are; those of the other make their pair, and the exit code tells."""
    (tmp_path / "log.jsonl").write_text(log_of(("go", "rm -rf src"), ("long", "rm -rf src")))

    def answer(body, _number):
        if question_text(body) == "long":
            return Reply(status=400)
        return Reply(calls=[("bash", {"command": "ls src"})], cost=0.001)

    with TeacherServer(answer) as server:
        words = (tmp_path / "log.jsonl", "--teachers", judge_file(tmp_path, server.base_url, "one", "two"))
        result = run("from-logs", *words, "--out", tmp_path / "out", "--max-usd", "1")
    assert result.exit_code == 6, result.output
    assert "repeat this command" in result.output
    assert len((tmp_path / "out" / "pairs.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_from_logs_killed_while_the_judge_is_asked_goes_on_where_it_was(tmp_path):
    """Two edits that only a judge can tell apart, each in both orders. Two of its answers are booked, and the third question is
    open, when the command is killed: that one is asked again, and nothing else."""
    (tmp_path / "log.jsonl").write_text(log_of(*((f"edit {n}", f"sed -i '{n}0d' a.py") for n in (1, 2))))
    asked, stuck, go = Counter(), threading.Event(), threading.Event()

    def wait():
        stuck.set()
        go.wait()

    def answer(body, _number):
        asked[body["model"], question_text(body)] += 1
        if body["model"] != "judge":
            line = question_text(body).split()[1]
            return Reply(calls=[("bash", {"command": f"sed -i '{line}2d' a.py"})], cost=0.001)
        judged = sum(count for (model, _), count in asked.items() if model == "judge")
        return Reply(content="no", cost=0.001, before=wait if judged == 3 else None)

    with TeacherServer(answer) as server:
        teachers = judge_file(tmp_path, server.base_url, "one", "two", file="teachers.toml")
        judge = judge_file(tmp_path, server.base_url, "judge", in_flight=1)
        options = {"--teachers": teachers, "--out": tmp_path / "out", "--max-usd": "1", "--judge": judge}
        words = [str(word) for word in (tmp_path / "log.jsonl", *(part for option in options.items() for part in option))]
        command = [sys.executable, "-c", COMPOSER, "pairs", "from-logs", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            while not stuck.wait(0.05):
                assert process.poll() is None, process.communicate()[0]
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        go.set()
        assert not (tmp_path / "out" / "pairs.jsonl").exists()
        result = run("from-logs", *words)
        assert result.exit_code == 0, result.output
    assert len((tmp_path / "out" / "pairs.jsonl").read_text().splitlines()) == 2
    again = [model for (model, _), count in asked.items() if count > 1]
    assert (len(asked), asked.total(), again) == (8, 9, ["judge"])
    kept = sqlite3.connect(tmp_path / "out" / "ledger.sqlite").execute("SELECT status, key FROM calls").fetchall()
    assert Counter(status for status, _ in kept) == {"paid": 8, "held": 1}
    assert len({key for _, key in kept}) == 8


def test_a_run_whose_judge_is_nobody_is_refused(tmp_path):
    tasks, replay = {"train": str(tmp_path)}, {"replay": {"judge": True}}
    config = RunConfig.model_validate({"model": {"path": "m"}, "tasks": tasks, "loss": replay})
    with pytest.raises(ConfigError, match=r"loss\.replay\.judge asks the first of \[\[teachers\]\], and there is none"):
        _check_arms(config, 100, "tasks.train")
