"""What a state tells, and what becomes of its agent's and its teachers' actions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from composer_replication.prm import vote_labels
from composer_replication.teachers import TeacherAnswer, Vote
from composer_replication.teachers.mining.pair_mining import find_disagreements, scene_of
from composer_replication.traces import states_from_traces
from composer_replication.types import ToolCall
from composer_replication.types.transcript import Trace, TraceTurn

ASKED = [{"role": "user", "content": "go"}]


def act(name, /, **arguments):
    return json.dumps({"name": name, "arguments": arguments})


def text(thought, command):
    return f"{thought}\n\n```bash\n{command}\n```"


def state(action, messages=ASKED, **rest):
    return {"state_id": "s", "messages": messages, "student_action": action, "tools": [], **rest}


def said(name, content):
    return TeacherAnswer(question_id="s", teacher=name, family=name, content=content, finish_reason="stop")


def called(name, tool, **arguments):
    call = ToolCall(call_id="1", name=tool, arguments=arguments)
    return TeacherAnswer(question_id="s", teacher=name, family=name, tool_calls=(call,), finish_reason="stop")


def test_teachers_who_write_one_command_with_other_thoughts_agree():
    answers = [said("a", text("Tests.", "pytest -q t")), said("b", text("I run them.", "pytest t -q")), said("c", text("", "ls"))]
    found = find_disagreements([state(text("Look.", "cat a.py"))], answers)
    assert [pair["n_teachers_agreeing"] for pair in found.pairs] == [2]
    assert find_disagreements([state(text("Look.", "pytest -q t"))], answers).dropped == {"the student agrees": 1}


def test_the_indentation_of_a_file_in_a_command_counts():
    one, other = (f"cat > a.py <<'E'\nfor x in y:\n    a()\n{blanks}b()\nE" for blanks in ("", "    "))
    answers = [said(name, text("Fix.", other)) for name in "abc"]
    found = find_disagreements([state(text("Fix.", one))], answers)
    assert (found.pairs, found.dropped) == ((), {"undecided whether the student agrees": 1})


@pytest.mark.parametrize(
    ("given", "in_text"),
    [
        (state(text("x", "ls")), True),
        (state("Done.", text_actions=True), True),
        (state(text("x", "ls"), text_actions=False), False),
        (state(text("x", "ls") + "\nThat is all."), False),
        (state("Done."), False),
        (state(text("x", "ls"), tools=[{"type": "function", "function": {"name": "bash"}}]), False),
        (state(text("x", "ls"), [*ASKED, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]), False),
        (state(text("x", "ls"), [*ASKED, {"role": "assistant", "content": "I think."}]), False),
        (state(text("x", "ls"), [*ASKED, {"role": "assistant", "content": text("y", "pwd")}]), True),
    ],
)
def test_who_writes_its_actions(given, in_text):
    assert scene_of(given).text_actions is in_text


def trace(details):
    call = ToolCall(call_id="call_0", name="bash", arguments={"command": "pytest -q"})
    turn = TraceTurn(context=tuple(ASKED), text=text("Tests.", "pytest -q"), tool_calls=(call,))
    return Trace(trajectory_id="t", format="mini-swe-agent", turns=(turn,), details=details)


def test_a_trace_tells_that_its_actions_are_text():
    (written,), (native,) = states_from_traces([trace({"text_actions": True})]), states_from_traces([trace({})])
    assert (written["text_actions"], written["student_action"]) == (True, text("Tests.", "pytest -q"))
    assert "text_actions" not in native


def test_votes_in_text_are_votes_for_the_call_of_the_trace():
    votes = {("t", 0): [Vote(teacher=n, family=n, action=text(n, c)) for n, c in (("a", "pytest -q"), ("b", "ls"))]}
    assert vote_labels([trace({"text_actions": True})], votes) == {"t": {0: 0.5}}
    assert vote_labels([trace({})], votes) == {"t": {0: 0.0}}


def test_calls_that_cannot_be_read_are_one_only_if_they_are_equal():
    from composer_replication.prm.labels import canonical_turn

    (turn,) = trace({}).turns
    broken = ToolCall(call_id="c", name="bash", arguments={}, error="bad JSON")
    one, same, other = (
        canonical_turn(replace(turn, text="", tool_calls=(broken,), details={"raw_arguments": {"c": raw}}))
        for raw in ('{"command": "ls', '{"command": "ls', '{"command": "rm')
    )
    assert one == same != other


def stale(path, other):
    read = {"id": "1", "type": "function", "function": {"name": "read_file", "arguments": {"path": path}}}
    edit = {
        "id": "1",
        "type": "function",
        "function": {"name": "edit_file", "arguments": {"path": other, "old": "A = 1", "new": "A = 9"}},
    }
    return [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [read]},
        {"role": "tool", "tool_call_id": "1", "content": "A = 1\nB = 2\n"},
        {"role": "assistant", "content": "", "tool_calls": [edit]},
        {"role": "tool", "tool_call_id": "1", "content": "edited"},
    ]


@pytest.mark.parametrize(("path", "other"), [("/repo/a.py", "a.py"), ("a.py", "/repo/a.py"), ("a.py", "src/../a.py")])
def test_teachers_who_take_an_edit_back_do_not_agree(path, other):
    student = act("edit_file", path=path, old="B = 2", new="B = 3")
    answers = [called(name, "write_file", path=path, content="A = 1\nB = 3\n") for name in "abc"]
    found = find_disagreements([state(student, stale(path, other))], answers)
    assert found.dropped == {"undecided whether the student agrees": 1}


@pytest.mark.parametrize("path", ["/repo/a.py", "src/../a.py"])
def test_one_write_by_two_paths_is_no_pair(path):
    answers = [called(name, "write_file", path=path, content="x = 1\n") for name in "abc"]
    found = find_disagreements([state(act("write_file", path="a.py", content="x = 1\n"))], answers)
    assert found.dropped == {"undecided whether the student agrees": 1}
