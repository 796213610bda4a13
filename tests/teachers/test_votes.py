from __future__ import annotations

import pytest

from composer_replication.actions.agreement import Vote
from composer_replication.teachers import BUDGET, TeacherAnswer, cast_vote
from composer_replication.types import ToolCall

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "read_file", "description": "", "parameters": PARAMETERS}}]


def answer(teacher="a", content="", calls=(), family="", **fields):
    tool_calls = tuple(ToolCall(call_id=f"c{i}", name=n, arguments=a) for i, (n, a) in enumerate(calls))
    return TeacherAnswer(question_id="q", teacher=teacher, family=family, content=content, tool_calls=tool_calls, **fields)


def read(teacher, path, family="", content=""):
    return cast_vote(answer(teacher, content, [("read_file", {"path": path})], family), TOOLS)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (answer(error="HTTP 500"), "no answer"),
        (answer(error=BUDGET), "over budget"),
        (answer(content="half an ans", finish_reason="length"), "cut off"),
        (answer(content="half an ans", finish_reason="content_filter"), "cut off"),
        (answer(calls=[("bash", {})]), "unknown tool"),
        (answer(calls=[("read_file", {})]), "invalid arguments"),
        (answer(calls=[("read_file", {"path": 3})]), "invalid arguments"),
        (answer(content=" ** "), "empty answer"),
    ],
)
def test_invalid_answers_do_not_vote(given, reason):
    assert cast_vote(given, TOOLS) == reason


def test_malformed_call_does_not_vote():
    broken = TeacherAnswer(
        question_id="q",
        teacher="a",
        family="",
        tool_calls=(ToolCall(call_id="c", name="read_file", arguments={}, error="bad JSON"),),
    )
    assert cast_vote(broken, TOOLS) == "malformed call"
    assert cast_vote(broken) == "malformed call"


def test_prose_beside_a_call_is_not_part_of_the_action():
    vote = read("a", "a.py", content="I will look at the file first.")
    assert vote.action == '{"name": "read_file", "arguments": {"path": "a.py"}}'


def test_teachers_without_a_family_are_one_each():
    vote = read("a", "a.py")
    assert isinstance(vote, Vote)
    assert (vote.teacher, vote.family) == ("a", "a")
    assert read("a", "a.py", "x").family == "x"
