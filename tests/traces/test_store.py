"""Traces on disk: exact, atomic, and no larger than what was said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from made_traces import traces

from composer_replication.traces import read_traces, states_from_traces, write_traces
from composer_replication.traces.recorder import ConversationRecorder, native_call
from composer_replication.traces.store import context_from, context_steps, trace_from_json, trace_to_json
from composer_replication.types import Message, ToolResult
from composer_replication.types.errors import ConfigError, StorageError
from composer_replication.types.transcript import Trace


@pytest.mark.slow
@given(traces())
def test_a_trace_comes_back_as_it_was(trace):
    assert trace_from_json(json.loads(json.dumps(trace_to_json(trace)))) == trace


def long_trace(turns: int, *, elide: bool = False) -> Trace:
    recorder = ConversationRecorder([Message(role="system", content="s" * 1000)])
    for i in range(turns):
        recorder.answer(f"turn {i:04}", [native_call(f"c{i}", "bash", {"command": f"echo {i:04}"})])
        recorder.result(ToolResult(call_id=f"c{i}", name="bash", content=f"{i:04} " * 200))
        if elide and i > 3:  # what SWE-agent does: all but the last observations become a note
            recorder.context[2 * (i - 3)] = Message(role="tool", content=f"old output {i - 3} omitted", tool_call_id=f"c{i - 3}")
    return Trace(trajectory_id="long", format="test", turns=recorder.turns(), messages=recorder.opening)


@pytest.mark.slow
@pytest.mark.parametrize("elide", [False, True])
def test_a_thousand_turns_are_not_quadratic_on_disk(tmp_path, elide):
    sizes = {}
    for turns in (100, 1000):
        path = tmp_path / f"{turns}.jsonl"
        trace = long_trace(turns, elide=elide)
        write_traces(path, [trace])
        assert list(read_traces(path)) == [trace]
        sizes[turns] = path.stat().st_size
    assert sizes[1000] < 11 * sizes[100]


def test_shared_messages_are_one_object_after_reading(tmp_path):
    write_traces(tmp_path / "t.jsonl", [long_trace(5)])
    (trace,) = read_traces(tmp_path / "t.jsonl")
    assert trace.turns[4].context[1] is trace.turns[1].context[1]


def test_steps_of_a_context_that_lost_its_middle():
    a, b, c, d = (Message(role="user", content=text) for text in "abcd")
    steps = context_steps([a, b, c], [a, d, c], {})
    assert steps == [[0, 1], d, [2, 3]]
    assert context_from([a, b, c], steps) == (a, d, c)


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "t.jsonl"
    write_traces(path, [long_trace(1)])
    before = path.read_bytes()

    def broken():
        yield long_trace(2)
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left"):
        write_traces(path, broken())
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_files_that_are_no_traces(tmp_path):
    with pytest.raises(ConfigError, match="there are no traces"):
        list(read_traces(tmp_path / "none.jsonl"))
    (tmp_path / "t.jsonl").write_text('{"turns": 3}\n')
    with pytest.raises(ConfigError, match="line 1: not a trace"):
        list(read_traces(tmp_path / "t.jsonl"))


def test_states_are_turns_whose_context_is_known():
    recorder = ConversationRecorder([Message(role="user", content="go")])
    recorder.answer("", [native_call("c0", "bash", '{"command": "ls"}')])
    recorder.result(ToolResult(call_id="c0", name="bash", content="a.py"))
    recorder.answer("", [native_call("c1", "bash", '{"command": ')])
    recorder.result(ToolResult(call_id="c1", name="bash", content="what?"))
    recorder.answer("I cannot see it", details={"incomplete": "an image"})
    recorder.answer("done")
    trace = Trace(trajectory_id="t", format="test", turns=recorder.turns(), task_id="task")
    states = states_from_traces([trace])
    assert [s["state_id"] for s in states] == ["t#0", "t#1", "t#3"]
    assert states[0]["student_action"] == '{"name": "bash", "arguments": {"command": "ls"}}'
    assert states[1]["messages"][-1]["content"] == "a.py"
    assert states[1]["student_action"] == '{"name": "bash", "arguments": "{\\"command\\": "}'
    assert "student_tool_calls" not in states[1]
    assert states[2]["messages"][3]["tool_calls"][0]["function"]["arguments"] == '{"command": '
    assert trace.turns[1].tool_calls[0].error == "bad JSON: Expecting value at 12"
