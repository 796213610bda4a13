"""What was edited by hand is refused where it is read, in one line, and everything beside it is imported."""

from __future__ import annotations

import json

import pytest
from made_traces import write_jsonl

from composer_replication.traces import atif_from_trace, import_traces, read_traces
from composer_replication.traces.recorder import ConversationRecorder, native_call
from composer_replication.traces.store import trace_to_json
from composer_replication.types import Message, StopReason, ToolResult, Trajectory, Turn, to_json
from composer_replication.types.errors import ConfigError
from composer_replication.types.transcript import Trace

GOOD = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
GONE = object()


def whole() -> Trace:
    recorder = ConversationRecorder([Message(role="user", content="go")])
    recorder.answer("look", [native_call("c0", "bash", {"command": "ls"}), native_call("c1", "bash", "{")])
    recorder.result(ToolResult(call_id="c0", name="bash", content="a.py", status="command_failed"))
    recorder.answer("done")
    return Trace(trajectory_id="t", format="test", turns=recorder.turns(), messages=recorder.opening, agent="a 1", reward=1.0)


def edited(record, path, value):
    """The record with another value at a path of keys, or without that key."""
    copy = json.loads(json.dumps(record))
    *keys, last = (int(key) if key.isdigit() else key for key in path.split("."))
    target = copy
    for key in keys:
        target = target[key]
    if value is GONE:
        del target[last]
    else:
        target[last] = value
    return copy


def problems_of(tmp_path, name, record):
    """What importing the record beside a good log tells of it; the good log is always imported."""
    home = tmp_path / "in"
    (home / name).parent.mkdir(parents=True)
    (home / name).write_text(json.dumps(record) + "\n")
    write_jsonl(home / "z_good.jsonl", [GOOD])
    done = import_traces(home, tmp_path / "out")
    assert done.traces["openai-chat"] == 1
    assert len(list(read_traces(tmp_path / "out" / "traces.jsonl"))) == done.traces.total()
    return [str(problem).removeprefix(f"{home / name}:") for problem in done.problems]


OWN = [
    ("trajectory_id", None),
    ("trajectory_id", 1.5),
    ("agent", True),
    ("messages.0.role", None),
    ("messages.0.content", GONE),
    ("messages.0.content", {"a": 1}),
    ("messages", "x"),
    ("tools", [5]),
    ("reward", "x"),
    ("reward", {"unscored": 3}),
    ("details", None),
    ("turns.0.text", []),
    ("turns.0.reasoning", 7),
    ("turns.0.context", [[]]),
    ("turns.0.context", [[0, "x"]]),
    ("turns.0.context", [[-1, 0]]),
    ("turns.0.context", [5]),
    ("turns.0.tool_calls.0.arguments", "[]"),
    ("turns.0.tool_calls.0.arguments", None),
    ("turns.0.tool_calls.0.name", ["x"]),
    ("turns.0.tool_calls.0.call_id", {}),
    ("turns.0.tool_calls.0.error", 0),
    ("turns.0.tool_calls.0.more", 0),
    ("turns.0.results.0.call_id", []),
    ("turns.0.results.0.content", {}),
    ("turns.0.results.0.content", True),
    ("turns.0.results.0.status", {}),
    ("turns.0.results.0.status", []),
    ("turns.0.results.0.details", []),
    ("turns.0.results.0.details", "x"),
    ("turns.0.details.raw_arguments", []),
    ("turns.0.details.raw_arguments", {"c1": None}),
    ("turns.1.context.1.tool_calls.0.function", None),
    ("turns.1.context.1.tool_calls.0.function.arguments", GONE),
    ("turns.1.context.1.tool_calls.0.id", 5),
]


@pytest.mark.parametrize(("path", "value"), OWN)
def test_a_trace_of_another_shape(tmp_path, path, value):
    (problem,) = problems_of(tmp_path, "a.jsonl", edited(trace_to_json(whole()), path, value))
    field = path.split(".")[-1]
    assert problem.startswith("1: not a trajectory of this release: ")
    assert field in problem or field.isdigit()
    write_jsonl(tmp_path / "t.jsonl", [edited(trace_to_json(whole()), path, value)])
    with pytest.raises(ConfigError, match=r"line 1: not a trace of this release"):
        list(read_traces(tmp_path / "t.jsonl"))


ROLLED_OUT = Trajectory(
    trajectory_id="0/t/0",
    task_id="t",
    policy_version=0,
    messages=(Message(role="user", content="go"),),
    tools=(),
    prompt_ids=(1,),
    turns=(Turn(action_ids=(2,), logprobs=(-0.5,), text="done"),),
    stop_reason=StopReason.NO_TOOL_CALL,
    temperature=1.0,
    reward=1.0,
)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("trajectory_id", None),
        ("turns.0.action_ids", "x"),
        ("turns.0.logprobs", [None]),
        ("turns.0.text", None),
        ("turns", {}),
        ("messages", [[]]),
        ("prompt_ids", [1.5]),
        ("stop_reason", "tired"),
        ("reward", None),
        ("grade", {"reward": 1}),
        ("arm", 1),
    ],
)
def test_a_trajectory_of_another_shape(tmp_path, path, value):
    (problem,) = problems_of(tmp_path, "a.jsonl", edited(to_json(ROLLED_OUT), path, value))
    assert problem.startswith("1: not a trajectory of this release: ")


RESULT = "steps.1.observation.results.0.extra.composer"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{RESULT}.call_id", GONE),
        (f"{RESULT}.name", GONE),
        (f"{RESULT}.status", GONE),
        (f"{RESULT}.details", GONE),
        (f"{RESULT}.status", {}),
        (f"{RESULT}.details", "x"),
        (f"{RESULT}.content", "x"),
        ("steps.1.tool_calls.1.extra.composer.error", {}),
        ("steps.1.tool_calls.1.extra.composer.raw", 1),
        ("steps.1.extra.composer.context", [[]]),
        ("steps.1.extra.composer.context", [[0, 0.5]]),
        ("steps.1.extra.composer.details", []),
        ("steps.1.extra.composer.details.raw_arguments", {"c1": []}),
        ("steps.0.extra", {"composer": {"message": {"role": "user"}}}),
        ("extra.composer.messages", [None]),
        ("extra.composer.reward", "x"),
        ("extra.composer.agent", None),
    ],
)
def test_our_part_of_an_atif_file_in_another_shape(tmp_path, path, value):
    (problem,) = problems_of(tmp_path, "a.json", edited(atif_from_trace(whole()), path, value))
    assert "extra.composer." in problem
    assert "\n" not in problem


def test_null_metrics_are_ordinary(tmp_path):
    step = {"step_id": 2, "source": "agent", "message": "yo", "metrics": None, "observation": None, "tool_calls": None}
    record = {"schema_version": "ATIF-v1.4", "agent": {"name": "a"}, "steps": [{"source": "user", "message": "hi"}, step]}
    assert problems_of(tmp_path, "a.json", record) == []
    assert [trace.format for trace in read_traces(tmp_path / "out" / "traces.jsonl")] == ["atif", "openai-chat"]


@pytest.mark.parametrize("own", [True, False])
def test_a_context_that_doubles_with_every_turn_ends(tmp_path, own):
    turn = {**trace_to_json(whole())["turns"][1], "context": [[0, 9], [0, 10**9], [0, 10**9]]}
    record = {**trace_to_json(whole()), "turns": [turn] * 60}
    if not own:
        step = {"source": "agent", "message": "x", "extra": {"composer": {"context": [[0, 10**9]] * 2}}}
        record = {"schema_version": "ATIF-v1.8", "agent": {}, "steps": [{"source": "user", "message": "hi"}, *[step] * 60]}
    (problem,) = problems_of(tmp_path, "a.json", record)
    assert "a context of more than 100000 messages" in problem


def test_numbers_that_no_float_holds(tmp_path):
    call = {"type": "function_call", "call_id": "c", "name": "shell", "arguments": '{"command": ["ls"], "x": 1e999}'}
    output = '{"output": "x", "metadata": {"exit_code": 1e999}}'
    items = [
        {"type": "message", "role": "user", "content": "x"},
        call,
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]
    home = tmp_path / "in"
    lines = [{"type": "session_meta", "payload": {"id": "s"}}, *({"type": "response_item", "payload": item} for item in items)]
    write_jsonl(home / "codex.jsonl", lines)
    (home / "plain.jsonl").write_text(json.dumps({**GOOD, "metadata": {"x": "HUGE"}}).replace('"HUGE"', "-1.5E+0400") + "\n")
    events = home / "talk"
    write_jsonl(events / "event-00000.json", [{"kind": "MessageEvent", "id": "1", "llm_message": {"role": "assistant"}}])
    write_jsonl(events / "event-00001.json", [{"kind": "Condensation", "id": "2", "summary": "s", "summary_offset": "HUGE"}])
    (events / "event-00001.json").write_text((events / "event-00001.json").read_text().replace('"HUGE"', "9" * 400 + ".0"))
    done = import_traces(home, tmp_path / "out")
    assert sorted(problem.path.name for problem in done.problems) == ["event-00001.json", "plain.jsonl"]
    assert all("beyond a float's range" in problem.reason for problem in done.problems)
    (codex, _) = read_traces(tmp_path / "out" / "traces.jsonl")
    assert codex.turns[0].tool_calls[0].error == "bad JSON: a number beyond a float's range"
    assert codex.turns[0].results[0].details == {}
