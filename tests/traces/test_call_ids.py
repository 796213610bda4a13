"""Calls that share an id, or have none, and answers of which a part cannot be understood."""

from __future__ import annotations

import json

from made_traces import write_jsonl

from composer_replication.actions.agreement import files_seen
from composer_replication.teachers import TeacherAnswer
from composer_replication.teachers.mining.pair_mining import find_disagreements
from composer_replication.traces import import_traces, read_traces, states_from_traces, write_atif
from composer_replication.types import ToolCall


def imported(tmp_path, messages, name="chat"):
    write_jsonl(tmp_path / f"{name}.jsonl", [{"id": name, "messages": [{"role": "user", "content": "x"}, *messages]}])
    import_traces(tmp_path / f"{name}.jsonl", tmp_path / "out")
    (trace,) = read_traces(tmp_path / "out" / "traces.jsonl")
    return trace


def native(*calls):
    wire = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"role": "assistant", "content": None, "tool_calls": wire}


def read(path):
    return "read_file", json.dumps({"path": path})


def told(call_id, content):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_legacy_function_calls_are_told_apart(tmp_path):
    legacy = [
        {"role": "assistant", "content": None, "function_call": {"name": "read_file", "arguments": '{"path": "a.py"}'}},
        {"role": "function", "name": "read_file", "content": "A = 1\n"},
        {"role": "assistant", "content": None, "function_call": {"name": "read_file", "arguments": '{"path": "b.py"}'}},
        {"role": "function", "name": "read_file", "content": "B = 2\n"},
        {"role": "assistant", "content": "done"},
    ]
    trace = imported(tmp_path, legacy)
    assert [(turn.tool_calls[0].call_id, turn.results[0].call_id) for turn in trace.turns[:2]] == [
        ("call_1_0",) * 2,
        ("call_3_0",) * 2,
    ]
    assert files_seen(states_from_traces([trace])[-1]["messages"]) == {"a.py": "A = 1\n", "b.py": "B = 2\n"}


def test_ids_that_begin_anew_with_every_answer(tmp_path):
    turns = [
        native(("c", *read("a.py"))),
        told("c", "A\n"),
        native(("c", *read("b.py"))),
        told("c", "B\n"),
        native(("c", "f", "{")),
    ]
    trace = imported(tmp_path, turns)
    assert [call.call_id for turn in trace.turns for call in turn.tool_calls] == ["c", "c~2", "c~3"]
    assert [turn.results[0].call_id for turn in trace.turns[:2]] == ["c", "c~2"]
    assert trace.turns[2].details["raw_arguments"] == {"c~3": "{"}
    assert trace.turns[2].context[:3] == trace.turns[1].context
    assert trace.turns[2].context[1] is trace.turns[1].context[1]
    assert files_seen(states_from_traces([trace])[-1]["messages"]) == {"a.py": "A\n", "b.py": "B\n"}
    write_atif([trace], tmp_path / "atif")
    import_traces(tmp_path / "atif", tmp_path / "again")
    assert list(read_traces(tmp_path / "again" / "traces.jsonl")) == [trace]


def test_two_calls_of_one_answer_under_one_id(tmp_path):
    trace = imported(tmp_path, [native(("c", *read("a.py")), ("c", "f", "{")), native(("", *read("b.py")), ("", *read("c.py")))])
    assert [[call.call_id for call in turn.tool_calls] for turn in trace.turns] == [["c", "call_1_1"], ["call_2_0", "call_2_1"]]
    assert trace.turns[1].context[-1]["tool_calls"][0]["function"]["arguments"] == {"path": "a.py"}


def test_results_of_a_log_that_repeats_ids_within_an_answer_go_in_order(tmp_path):
    def item(kind, **rest):
        return {"type": "response_item", "payload": {"type": kind, "call_id": "c", **rest}}

    log = [{"type": "session_meta", "payload": {"id": "s"}}]
    log += [item("function_call", name="shell", arguments="{}"), item("function_call", name="shell", arguments='{"a": 1}')]
    log += [item("function_call_output", output="one"), item("function_call_output", output="two")]
    log += [{"type": "response_item", "payload": {"type": "message", "role": "assistant", "content": "done"}}]
    import_traces(write_jsonl(tmp_path / "codex.jsonl", log), tmp_path / "out")
    (trace,) = read_traces(tmp_path / "out" / "traces.jsonl")
    assert [call.call_id for call in trace.turns[0].tool_calls] == ["c", "c~2"]
    assert [(r.call_id, r.content) for r in trace.turns[0].results] == [("c", "one"), ("c~2", "two")]
    assert [m["tool_call_id"] for m in trace.turns[1].context if m["role"] == "tool"] == ["c", "c~2"]


def test_an_answer_with_one_unreadable_call_is_not_the_readable_one_alone(tmp_path):
    trace = imported(tmp_path, [native(("1", *read("a.py")), ("2", "edit_file", '{"path": "a.py", "old": '))])
    (state,) = states_from_traces([trace])
    assert state["student_action"].split("\n") == [
        '{"name": "read_file", "arguments": {"path": "a.py"}}',
        '{"name": "edit_file", "arguments": "{\\"path\\": \\"a.py\\", \\"old\\": "}',
    ]
    assert "student_tool_calls" not in state
    call = ToolCall(call_id="1", name="read_file", arguments={"path": "a.py"})
    answers = [
        TeacherAnswer(question_id=state["state_id"], teacher=name, family=name, tool_calls=(call,), finish_reason="stop")
        for name in "xyz"
    ]
    assert "the student agrees" not in find_disagreements([state], answers).dropped
