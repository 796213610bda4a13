from __future__ import annotations

import pytest

from composer_replication.teachers import BUDGET, Consensus, TeacherAnswer, Vote, cast_vote, consensus
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


def test_agreement_is_by_canonical_form_and_the_shortest_text_speaks():
    agreed = consensus([read("a", "./src/../a.py"), read("b", "a.py"), read("c", "b.py")], threshold=2)
    assert isinstance(agreed, Consensus)
    assert (agreed.teachers, agreed.families) == (("a", "b"), 2)
    assert agreed.action == '{"name": "read_file", "arguments": {"path": "a.py"}}'


def test_one_family_is_one_vote():
    votes = [read("a1", "a.py", "x"), read("a2", "a.py", "x"), read("b", "b.py", "y")]
    assert consensus(votes, threshold=2) == "too few teachers agree"
    agreed = consensus([*votes, read("c", "a.py", "z")], threshold=2)
    assert (agreed.teachers, agreed.families) == (("a1", "a2", "c"), 2)


def test_tie_is_no_consensus():
    votes = [read("a", "a.py"), read("b", "a.py"), read("c", "b.py"), read("d", "b.py")]
    assert consensus(votes, threshold=2) == "tie"
    assert consensus(votes[:1] + votes[2:3], threshold=1) == "tie"


def test_nobody_voting_is_no_consensus():
    assert consensus([], threshold=1) == "too few teachers agree"


def test_text_and_call_never_agree():
    said = cast_vote(answer("a", 'read_file {"path": "a.py"}'))
    assert isinstance(said, Vote)
    assert consensus([said, read("b", "a.py")], threshold=2) == "too few teachers agree"
