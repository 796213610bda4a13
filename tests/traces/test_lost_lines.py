"""What a log has lost: no turn that saw it is taken for exact."""

from __future__ import annotations

import json
import shutil

import pytest
from made_traces import write_jsonl
from oracle import FIXTURES

from composer_replication.traces import readers, states_from_traces
from composer_replication.types.transcript import Trace


def states(reader, path):
    """What teachers would be shown and compared with, as texts; and how many turns there were."""
    traces = [item for item in readers()[reader].read(path) if isinstance(item, Trace)]
    kept = ("messages", "student_action")
    found = [json.dumps({name: state[name] for name in kept}) for state in states_from_traces(traces)]
    return found, sum(len(trace.turns) for trace in traces)


LOGS = [
    ("claude-code", "claude_code", name) for name in ("fix", "errors", "resumed", "compacted")
] + [("codex", "codex", name) for name in ("fix", "errors", "resumed", "compacted")]  # fmt: skip


@pytest.mark.parametrize(("reader", "folder", "name"), LOGS)
def test_a_line_that_cannot_be_read_leaves_no_wrong_state(tmp_path, reader, folder, name):
    log = FIXTURES / folder / f"{name}.jsonl"
    whole, _ = states(reader, log)
    lines = log.read_bytes().splitlines(keepends=True)
    broken = tmp_path / log.name
    for place, line in enumerate(lines):
        broken.write_bytes(b"".join([*lines[:place], line[: len(line) // 2] + b"\n", *lines[place + 1 :]]))
        found, _ = states(reader, broken)
        assert set(found) <= set(whole), f"line {place + 1}"


@pytest.mark.parametrize("number", [7, 8, 9, 10])
def test_no_turn_after_a_broken_line_of_claude_code_is_exact(tmp_path, number):
    lines = (FIXTURES / "claude_code" / "fix.jsonl").read_bytes().splitlines(keepends=True)
    lines[number - 1] = b'{"type": "user", "mess\n'
    (tmp_path / "fix.jsonl").write_bytes(b"".join(lines))
    assert states("claude-code", tmp_path / "fix.jsonl") == ([], 7)


@pytest.mark.parametrize("lose", ["broken", "gone"])
@pytest.mark.parametrize("name", ["fix", "errors", "condensed"])
def test_an_event_that_is_lost_leaves_no_wrong_state(tmp_path, name, lose):
    folder = FIXTURES / "openhands" / name / "events"
    whole, _ = states("openhands", folder)
    for event in sorted(folder.iterdir())[:-1]:
        copy = tmp_path / event.name[:11] / "events"
        shutil.copytree(folder, copy)
        (copy / event.name).unlink() if lose == "gone" else (copy / event.name).write_text('{"kind": "Act')
        found, _ = states("openhands", copy)
        silent = json.loads(event.read_text())["kind"] in ("ConversationStateUpdateEvent", "PauseEvent")
        assert silent or set(found) <= set(whole), event.name


def asked(*ids):
    function = {"name": "bash", "arguments": '{"command": "ls"}'}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": i, "type": "function", "function": function} for i in ids]}


USER, DONE = {"role": "user", "content": "Repair it."}, {"role": "assistant", "content": "done"}


def incomplete(path, reader, record):
    write_jsonl(path, [record])
    (trace,) = [item for item in readers()[reader].read(path) if isinstance(item, Trace)]
    return [turn.details.get("incomplete") for turn in trace.turns]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ([{"tool_call_id": "a"}, {"tool_call_id": "b"}], None),
        ([{}, {}], None),  # datasets without ids answer in the order of the calls
        ([{"name": "bash"}, {"name": "bash"}], None),
        ([{"tool_call_id": "a"}], "the result of a call"),
        ([], "the result of a call"),
        ([{"tool_call_id": "a"}, {"tool_call_id": "b"}, {"tool_call_id": "c"}], "the call of a result"),
    ],
)
def test_calls_and_results_of_a_chat_belong_together(tmp_path, told, reason):
    messages = [USER, asked("a", "b"), *({"role": "tool", "content": "x", **one} for one in told), DONE]
    assert incomplete(tmp_path / "chat.jsonl", "openai-chat", {"messages": messages}) == [None, reason]


def test_a_step_of_atif_whose_call_has_no_result(tmp_path):
    call = {"tool_call_id": "a", "function_name": "bash", "arguments": {}}
    steps = [
        {"source": "user", "message": "Repair it."},
        {"source": "agent", "message": "", "tool_calls": [call]},
        {"source": "agent", "message": "done"},
    ]
    record = {"schema_version": "ATIF-v1.4", "agent": {"name": "a", "version": "1"}, "steps": steps}
    assert incomplete(tmp_path / "a.json", "atif", record) == [None, "the result of a call"]
    steps[1]["observation"] = {"results": [{"content": "x"}]}
    assert incomplete(tmp_path / "a.json", "atif", record) == [None, None]


@pytest.mark.parametrize("spoiled", [7, {"role": "tool", "tool_call_id": "a", "content": [{"type": "image"}]}])
def test_a_query_of_swe_agent_that_lost_a_message(tmp_path, spoiled):
    record = json.loads((FIXTURES / "swe_agent" / "fix.traj").read_text())
    record["trajectory"][1]["query"][-1] = spoiled
    told = incomplete(tmp_path / "fix.traj", "swe-agent", record)
    assert [reason is None for reason in told] == [place != 1 for place in range(len(told))]


def test_a_completion_of_openhands_that_shows_an_image(tmp_path):
    record = {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "timestamp": 1.0}
    record["response"] = {"choices": [{"message": DONE}]}
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "1.json").write_text(json.dumps(record))
    (trace,) = readers()["openhands"].read(tmp_path / "c")
    assert trace.turns[0].details["incomplete"] == "a part of a message: image_url"


def test_the_line_that_mini_swe_agent_lost(tmp_path):
    record = json.loads((FIXTURES / "mini_swe_agent" / "fix.traj.json").read_text())
    place = next(i for i, message in enumerate(record["messages"]) if message["role"] == "tool")
    del record["messages"][place]
    told = incomplete(tmp_path / "fix.traj.json", "mini-swe-agent", record)
    assert told == [None, *["the result of a call"] * (len(told) - 1)]
