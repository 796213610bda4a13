from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from teacher_server import Reply, TeacherServer

import composer_replication
from composer_replication import DEFAULT_TEACHERS, DPOPair, TraceState, extract_dpo_pairs, replay_trace
from composer_replication.actions.agreement import ActionComparison, SameAction
from composer_replication.actions.calls import Call, parse_action, render_action
from composer_replication.teacher_replay import find_disagreements
from composer_replication.teachers import Ledger, Teacher, TeacherAnswer, judge_pairs
from composer_replication.teachers.mining.pair_mining import student_action
from composer_replication.types import ToolCall
from composer_replication.types.errors import ConfigError

LOCAL = {"api_key_env": None, "usd_per_million_input": 0.0, "usd_per_million_output": 0.0, "max_retries": 0}


def read(path):
    return f'{{"name": "read_file", "arguments": {{"path": "{path}"}}}}'


@pytest.mark.parametrize("arguments", ['{"path": "a.py"}', {"path": "a.py"}])
def test_a_students_calls_are_read_as_an_api_writes_them(arguments):
    call = {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": arguments}}
    assert student_action({**state(1), "student_tool_calls": [call]}) == render_action("", [Call("read_file", {"path": "a.py"})])
    call["function"]["arguments"] = "{"
    assert student_action({**state(1), "student_tool_calls": [call]}) == state(1)["student_action"]


def state(n, action=None):
    return TraceState(
        state_id=f"s{n}", messages=[{"role": "user", "content": str(n)}], student_action=action or read("student.py")
    )


def local_teachers(server, names="abc"):
    return [Teacher(name=n, model=n, family=n, base_url=server.base_url, **LOCAL) for n in names]


def scripted(script):
    """`script[state text][model]` is the path a teacher reads, a text in parentheses, or a Reply."""

    def answer(body, number):
        said = script[body["messages"][-1]["content"]][body["model"]]
        if isinstance(said, Reply):
            return said
        return Reply(content=said[1:-1]) if said.startswith("(") else Reply(content="hm", calls=[("read_file", {"path": said})])

    return answer


def replay(states, script, names="abc"):
    with TeacherServer(scripted(script)) as server:
        return asyncio.run(replay_trace(states=states, teachers=local_teachers(server, names), max_total_usd=1.0))


def test_pairs_and_the_reasons_for_none():
    script = {
        "0": {"a": "good.py", "b": "./good.py", "c": "other.py"},
        "1": {"a": "student.py", "b": "student.py", "c": "student.py"},
        "2": {"a": "x.py", "b": "y.py", "c": "z.py"},
        "3": {"a": "good.py", "b": Reply(status=400), "c": Reply(calls=[("read_file", "{bad")])},
        "4": {"a": "(**Stop** here.)", "b": "(stop here)", "c": "good.py"},
    }
    states = [state(n) for n in range(5)]
    actions = replay(states, script)
    found = find_disagreements(states, actions, 2)
    assert found.pairs == (
        DPOPair(
            state_id="s0",
            state_messages=states[0]["messages"],
            chosen=read("good.py"),
            rejected=read("student.py"),
            n_teachers_agreeing=2,
        ),
        DPOPair(
            state_id="s4",
            state_messages=states[4]["messages"],
            chosen="stop here",
            rejected=read("student.py"),
            n_teachers_agreeing=2,
        ),
    )
    assert found.dropped == {"the student agrees": 1, "too few teachers agree": 2}
    assert found.abstained == {"no answer": 1, "malformed call": 1}
    assert extract_dpo_pairs(states=states, teacher_actions=actions, agreement_threshold=2) == list(found.pairs)
    assert [p["state_id"] for p in extract_dpo_pairs(states, actions, agreement_threshold=3)] == []


def test_ties_give_no_pair():
    actions = replay([state(0)], {"0": {"a": "x.py", "b": "x.py", "c": "y.py", "d": "y.py"}}, names="abcd")
    assert find_disagreements([state(0)], actions, 2).dropped == {"tie": 1}


def test_student_that_cannot_be_parsed_is_the_rejected_side():
    broken = state(0, "<tool_call>{oops</tool_call>")
    actions = replay([broken], {"0": {"a": "x.py", "b": "x.py", "c": "y.py"}})
    (pair,) = extract_dpo_pairs([broken], actions)
    assert (pair["chosen"], pair["rejected"]) == (read("x.py"), "<tool_call>{oops</tool_call>")


def test_student_calls_count_before_its_text():
    own = state(0, "see calls")
    own["student_tool_calls"] = [
        {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": {"path": "x.py"}}}
    ]
    actions = replay([own], {"0": {"a": "x.py", "b": "x.py", "c": "y.py"}})
    assert find_disagreements([own], actions).dropped == {"the student agrees": 1}


def call(tool, **arguments):
    return json.dumps({"name": tool, "arguments": arguments})


def answers(state_name, **said):
    """What each teacher did at a state, as it would come from the pool."""
    found = []
    for teacher, action in said.items():
        _, calls = parse_action(action)
        wire = tuple(ToolCall(call_id=f"c{i}", name=c.name, arguments=c.arguments) for i, c in enumerate(calls))
        content = "" if wire else action
        found.append(TeacherAnswer(question_id=state_name, teacher=teacher, family=teacher, content=content, tool_calls=wire))
    return found


def bash(command):
    return call("bash", command=command)


def test_forms_of_one_action_agree_and_the_student_who_writes_another_form_agrees_too():
    said = answers("s0", a=bash("pytest -q tests/"), b=bash("pytest tests -q"), c=bash("ls"))
    found = find_disagreements([state(0, bash("cat a.py"))], said)
    (pair,) = found.pairs
    assert (pair["chosen"], pair["n_teachers_agreeing"]) == (bash("pytest tests -q"), 2)
    assert found.confidence == {"s0": pytest.approx(2 / 3)}
    assert found.length_ratio == pytest.approx(len(pair["chosen"]) / len(pair["rejected"]))
    again = find_disagreements([state(0, bash("pytest --quiet ./tests"))], said)
    assert (again.pairs, again.dropped, again.length_ratio) == ((), {"the student agrees": 1}, None)


@pytest.mark.parametrize(
    ("student", "reason"),
    [
        (bash("cat a.py | head -n 5"), "both look at the same thing"),
        (bash("frobnicate"), "undecided whether the student agrees"),
        (bash("cat ./a.py"), "the student agrees"),
    ],
)
def test_what_is_not_certainly_another_action_is_no_pair(student, reason):
    said = answers("s0", a=bash("cat a.py"), b=bash("cat 'a.py'"))
    found = find_disagreements([state(0, student)], said)
    assert (found.pairs, found.dropped) == ((), {reason: 1})
    assert found.methods["same: canonical"] >= 1


def test_edits_are_compared_in_the_file_that_the_state_has_read():
    own = state(0, call("edit_file", path="a.py", old="x = 1", new="x = 3"))
    own["messages"] = [
        *own["messages"],
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "r", "function": {"name": "read_file", "arguments": {"path": "a.py"}}}],
        },
        {"role": "tool", "tool_call_id": "r", "content": "x = 1\n"},
    ]
    said = answers(
        "s0", a=call("edit_file", path="a.py", old="1", new="2"), b=call("write_file", path="a.py", content="x = (2)\n")
    )
    (pair,) = find_disagreements([own], said).pairs
    assert pair["chosen"] == said_action(said[0])
    blind = state(0, own["student_action"])
    assert find_disagreements([blind], said).dropped == {"too few teachers agree": 1}


def said_action(answer):
    return call(answer.tool_calls[0].name, **answer.tool_calls[0].arguments)


def test_a_judge_decides_what_is_left():
    one, other, own = bash("make all"), bash("make -j2 all"), bash("rm -rf build")
    states, said = [state(0, own)], answers("s0", a=one, b=other)
    first = find_disagreements(states, said)
    assert first.dropped == {"too few teachers agree": 1}
    assert set(first.undecided) == {tuple(sorted(pair)) for pair in ((one, other), (one, own), (other, own))}
    with (
        TeacherServer(lambda body, _: Reply(content="no" if "build" in str(body["messages"][1:]) else "yes")) as server,
        Ledger() as ledger,
    ):
        judged = asyncio.run(judge_pairs(first.undecided, local_teachers(server, "j")[0], ledger=ledger, max_total_usd=0.0))
    found = find_disagreements(states, said, judged=judged)
    assert [p["chosen"] for p in found.pairs] == [one]
    assert found.confidence["s0"] == pytest.approx(0.8 * 0.8)
    assert found.undecided == ()


def test_weights_are_given_or_fitted():
    """Of four teachers two are right nine times; then the four are split."""
    said, states = [], []
    for n in range(9):
        states.append(state(n))
        said += answers(f"s{n}", a=read("x.py"), b=read("./x.py"), c=read(f"c{n}.py"), d=read(f"d{n}.py"))
    states.append(state(9))
    said += answers("s9", a=read("x.py"), b=read("x.py"), c=read("y.py"), d=read("y.py"))
    assert find_disagreements(states, said).dropped == {"tie": 1}
    found = find_disagreements(states, said, weights="fitted")
    assert [p["chosen"] for p in found.pairs] == [read("x.py")] * 10
    assert found.weights["a"] == found.weights["b"] > 0.8 > 0.4 > found.weights["c"]
    given = find_disagreements(states, said, weights={"c": 2.0, "d": 2.0})
    assert given.pairs[-1]["chosen"] == read("y.py")


def test_verdicts_that_contradict_each_other_are_counted():
    judged = {}
    for one, other, answer in (("a b", "b c", SameAction.SAME), ("b c", "c d", SameAction.SAME), ("a b", "c d", SameAction.DIFF)):
        judged[one, other] = judged[other, one] = ActionComparison(answer, "judge", "", 0.8)
    found = find_disagreements([state(0)], answers("s0", a="a b", b="b c", c="c d"), judged=judged)
    assert (found.dropped, found.dissolved) == ({"the verdicts contradict each other": 1}, 1)


def test_bad_arguments_are_refused():
    with pytest.raises(ConfigError, match="two states have the id 's0'"):
        asyncio.run(replay_trace(states=[state(0), state(0)], teachers=DEFAULT_TEACHERS, max_total_usd=1.0))
    with pytest.raises(ConfigError, match="agreement_threshold is 0"):
        extract_dpo_pairs([], [], agreement_threshold=0)


def test_default_teachers():
    assert [t.model for t in DEFAULT_TEACHERS] == ["anthropic/claude-opus-4.7", "openai/gpt-5", "deepseek/deepseek-v4-pro"]
    assert len({t.family for t in DEFAULT_TEACHERS}) == 3
    for teacher in DEFAULT_TEACHERS:
        assert teacher.api_key_env == "OPENROUTER_API_KEY"
        assert teacher.base_url == "https://openrouter.ai/api/v1"
        assert teacher.price(1, 1) > 0


def test_default_teachers_without_a_key_ask_nothing(monkeypatch):
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENROUTER_API_KEY is not set"):
        asyncio.run(replay_trace(states=[state(0)], teachers=DEFAULT_TEACHERS, max_total_usd=10.0))


def test_package_stays_light():
    code = "import sys, composer_replication; assert not {'torch', 'openai', 'transformers'} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert composer_replication.TraceState is TraceState


REPLAYER = """
import asyncio, sys
from composer_replication import replay_trace
from composer_replication.teachers import Teacher
url, ledger, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
teachers = [Teacher(name=m, model=m, base_url=url, api_key_env=None, usd_per_million_input=0.0, usd_per_million_output=10.0,
                    max_concurrency=2, max_retries=0) for m in "ab"]
states = [{"state_id": f"s{i}", "messages": [{"role": "user", "content": str(i)}], "student_action": "x"} for i in range(n)]
answers = asyncio.run(replay_trace(states=states, teachers=teachers, max_total_usd=50.0, ledger=ledger))
assert all(a.error is None for a in answers)
sys.stdout.write(str(sum(not a.cached for a in answers)))
"""


def run_replayer(server, ledger, n):
    done = subprocess.run([sys.executable, "-c", REPLAYER, server.base_url, str(ledger), str(n)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_replay_killed_in_the_middle_resumes_without_asking_or_paying_twice(tmp_path):
    """The server answers 10 calls and then holds its breath; the replayer is killed with calls under way, then started again."""
    n, answered_first = 12, 10
    stuck, release = threading.Event(), threading.Event()

    def answer(body, number):
        def hold():
            if number >= answered_first and not release.is_set():
                stuck.set()
                release.wait()

        return Reply(content=f"{body['model']}{body['messages'][-1]['content']}", cost=0.001, before=hold)

    killed, whole = tmp_path / "killed.sqlite", tmp_path / "whole.sqlite"
    with TeacherServer(answer) as server:
        command = [sys.executable, "-c", REPLAYER, server.base_url, str(killed), str(n)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            stuck.wait()
            while len(server.requests) < answered_first + 4:  # all four slots wait for an answer, so every earlier one was booked
                threading.Event().wait(0.01)
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        bought_before = server.answered[:]
        assert len(bought_before) == answered_first
        with Ledger(killed) as ledger:
            assert (ledger.num_answers, ledger.reserved_usd) == (answered_first, 0.0)
            assert ledger.spent_usd - ledger.held_usd == pytest.approx(0.001 * answered_first)
            assert ledger.held_usd == pytest.approx(4 * 0.01, rel=0.03)  # four calls under way, 1,024 tokens each, likely
        release.set()
        bought_after = run_replayer(server, killed, n)
        assert bought_after == 2 * n - answered_first
        keys = [(b["model"], b["messages"][-1]["content"]) for b in server.requests]
        asked_again = [k for k in keys[answered_first + 4 :] if k in keys[:answered_first]]
        assert asked_again == []
        assert run_replayer(server, killed, n) == 0
        run_replayer(server, whole, n)
    with Ledger(killed) as one, Ledger(whole) as other:
        assert one.spent_usd - one.held_usd == pytest.approx(other.spent_usd) == pytest.approx(0.001 * 2 * n)
