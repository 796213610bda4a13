"""ATIF: valid for the package of that name where it is installed, and nothing lost on the way out and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from made_traces import traces

from composer_replication.traces import atif_from_trace, reader_for, write_atif
from composer_replication.traces.readers.atif import COPIED, trace_from_atif
from composer_replication.traces.source import Dropped, Problem
from composer_replication.types import Message
from composer_replication.types.errors import TraceError
from composer_replication.types.transcript import Trace, TraceTurn

FOREIGN = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s1",
    "agent": {"name": "terminus", "version": "2", "model_name": "m", "tool_definitions": [{"type": "function"}]},
    "steps": [
        {"step_id": 1, "source": "system", "message": "You are careful."},
        {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "Repair it."}]},
        {
            "step_id": 3,
            "source": "agent",
            "message": "Looking.",
            "reasoning_content": "hm",
            "is_copied_context": True,
            "tool_calls": [{"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "a.py"}]},
        },
        {
            "step_id": 4,
            "source": "agent",
            "timestamp": "2026-01-02T03:04:05Z",
            "message": "",
            "tool_calls": [{"tool_call_id": "c2", "function_name": "bash", "arguments": {"command": "cat a.py"}}],
            "observation": {"results": [{"source_call_id": "c2", "content": "x = 1"}]},
            "metrics": {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "cost_usd": 0.5,
                "completion_token_ids": [4, 5],
                "logprobs": [-0.1, 0],
            },
        },
        {"step_id": 5, "source": "agent", "message": "Done."},
    ],
    "subagent_trajectories": [
        {
            "schema_version": "ATIF-v1.7",
            "trajectory_id": "helper",
            "agent": {"name": "terminus", "version": "2"},
            "steps": [
                {"step_id": 1, "source": "user", "message": "Count."},
                {"step_id": 2, "source": "agent", "message": "Two."},
            ],
        }
    ],
}


@pytest.mark.slow
@given(traces())
def test_nothing_is_lost_on_the_way_out_and_back(tmp_path_factory, trace):
    written = json.loads(json.dumps(atif_from_trace(trace)))
    items = list(trace_from_atif(written, tmp_path_factory.getbasetemp()))
    if trace.turns:
        assert items == [trace]
    else:
        assert [type(item) for item in items] == [Problem]


def test_a_foreign_trajectory(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(FOREIGN))
    reader = reader_for("atif")
    assert reader.sniff(tmp_path / "t.json")
    dropped, trace, helper = reader.read(tmp_path / "t.json")
    assert dropped == Dropped(tmp_path / "t.json", COPIED)
    assert (trace.trajectory_id, trace.agent, trace.model) == ("s1", "terminus 2", "m")
    assert [m["role"] for m in trace.turns[0].context] == ["system", "user", "assistant", "tool"]
    assert len(trace.turns) == 2  # the copied step is context only
    assert trace.turns[0].details["token_ids"] == [4, 5]
    assert trace.turns[0].details["usd"] == 0.5
    assert trace.turns[1].context[-1] == Message(role="tool", content="x = 1", tool_call_id="c2", name="bash")
    assert (helper.trajectory_id, helper.turns[0].text) == ("helper", "Two.")


def test_a_step_that_is_none_keeps_what_came_before(tmp_path):
    steps = [*FOREIGN["steps"][:2], {"source": "agent", "message": "a"}, {"source": "martian", "message": "b"}]
    problem, trace = trace_from_atif({**FOREIGN, "steps": steps, "subagent_trajectories": None}, tmp_path)
    assert "step 4: its source is 'martian'" in problem.reason
    assert [turn.text for turn in trace.turns] == ["a"]


def test_files_are_named_after_traces_and_never_overwrite(tmp_path):
    turns = (TraceTurn(context=(), text="hello"),)
    made = [Trace(trajectory_id=name, format="test", turns=turns) for name in ("a/b", "a b", "../../etc")]
    paths = write_atif(made, tmp_path)
    assert [p.name for p in paths] == ["a_b.json", "a_b~2.json", "etc.json"]
    assert [next(iter(reader_for("atif").read(p))).trajectory_id for p in paths] == ["a/b", "a b", "../../etc"]


def test_a_number_that_json_lacks_is_an_error(tmp_path):
    trace = Trace(trajectory_id="t", format="test", turns=(), details={"x": float("nan")})
    with pytest.raises(TraceError, match="NaN"):
        write_atif([trace], tmp_path)
