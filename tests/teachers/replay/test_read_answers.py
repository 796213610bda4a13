"""What `composer replay` wrote is read back, and what is no answer or no state is named by its place."""

from __future__ import annotations

import asyncio
import json

import pytest

from composer_replication import extract_dpo_pairs, replay_trace
from composer_replication.teacher_replay import read_answers
from composer_replication.teachers import Failure, Teacher, TeacherAnswer
from composer_replication.types import ToolCall, to_json
from composer_replication.types.errors import ConfigError

CALL = ToolCall(call_id="c", name="read_file", arguments={"path": "é.py", "lines": [1, 2]})
ANSWERS = [
    TeacherAnswer(question_id="s0", teacher="a", family="f", tool_calls=(CALL,), finish_reason="tool_calls", usd=0.25),
    TeacherAnswer(question_id="s0", teacher="b", family="b", content="Read it.", cached=True, latency_s=0.5),
    TeacherAnswer(question_id="s1", teacher="a", family="f", error="HTTP 400", failure=Failure.REFUSED),
]
STATE = {"state_id": "s0", "messages": [{"role": "user", "content": "Fix it."}], "student_action": "I stop."}


@pytest.fixture
def write(tmp_path):
    def to(*lines):
        path = tmp_path / "answers.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return to


def test_answers_are_read_back(write):
    assert read_answers(write(*map(to_json, ANSWERS))) == ANSWERS


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([to_json(ANSWERS[0]), {"question_id": "s0"}], r"answers\.jsonl, line 2: teacher: "),
        ([to_json(ANSWERS[0]) | {"failure": "bored"}], r"line 1: failure: "),
        ([to_json(ANSWERS[0]) | {"tool_calls": [{"name": "x"}]}], r"line 1: tool_calls\.0\.call_id: "),
        ([STATE], r"line 1: question_id: "),
        ([to_json(ANSWERS[0]), to_json(ANSWERS[0])], r"line 2: 'a' has answered 's0' already, in line 1"),
        ([], r"has no answers"),
    ],
)
def test_what_is_no_answer_is_named(write, lines, told):
    with pytest.raises(ConfigError, match=told):
        read_answers(write(*lines))


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"id": "state-000", "task": "Fix the failing test"}, r"states\[1\] has no state_id"),
        ({"state_id": "s1", "task": "Fix the failing test"}, r"states\[1\] has no messages"),
        ({k: v for k, v in STATE.items() if k != "student_action"}, r"states\[1\] has no student_action"),
        (STATE | {"state_id": 7}, r"states\[1\]\.state_id is 7"),
        (STATE | {"messages": []}, r"states\[1\]\.messages is \[\]"),
        (STATE | {"messages": ["Fix it."]}, r"states\[1\]\.messages\[0\] is no dict with role and content"),
        ("state-000", r"states\[1\] is 'str', no dict"),
    ],
)
def test_a_state_that_is_none_is_named(state, told):
    local = Teacher(name="a", model="a", family="a", base_url="http://127.0.0.1:9", api_key_env=None)
    with pytest.raises(ConfigError, match=told):
        extract_dpo_pairs([STATE, state], [])
    with pytest.raises(ConfigError, match=told) as raised:
        asyncio.run(replay_trace([STATE, state], [local], None))
    assert "student_action" in (raised.value.fix or "")
