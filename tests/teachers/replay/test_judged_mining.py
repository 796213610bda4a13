"""A judge for what nothing else compares: in Python, in a run's options, and from logs to pairs in one command."""

from __future__ import annotations

import asyncio
import json
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


def judge_file(folder, url, *names):
    tables = [
        f'[[teachers]]\nname = "{name}"\nmodel = "{name}"\nbase_url = "{url}"\napi_key_env = ""\n'
        "usd_per_million_input = 1.0\nusd_per_million_output = 1.0\n"
        for name in names
    ]
    (folder / "judge.toml").write_text("\n".join(tables))
    return folder / "judge.toml"


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


def test_from_logs_to_pairs_in_one_command(tmp_path):
    """A session whose only action is one that its teachers would not have taken. Repeated, the command resumes."""
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {}}}}}
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": "rm -rf src"})}}
    messages = [*ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": "c1", "content": "ok"}]
    (tmp_path / "log.jsonl").write_text(json.dumps({"messages": messages, "tools": [tool]}) + "\n")

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
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {}}}}}
    sessions = []
    for word in ("go", "long"):
        call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": "rm -rf src"})}}
        messages = [{"role": "user", "content": word}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        sessions.append({"messages": [*messages, {"role": "tool", "tool_call_id": "c1", "content": "ok"}], "tools": [tool]})
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in sessions))

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


def test_a_run_whose_judge_is_nobody_is_refused(tmp_path):
    tasks, replay = {"train": str(tmp_path)}, {"replay": {"judge": True}}
    config = RunConfig.model_validate({"model": {"path": "m"}, "tasks": tasks, "loss": replay})
    with pytest.raises(ConfigError, match=r"loss\.replay\.judge asks the first of \[\[teachers\]\], and there is none"):
        _check_arms(config, 100, "tasks.train")
