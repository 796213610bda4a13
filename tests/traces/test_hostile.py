"""Whatever lies in a folder: one clear line each, and everything else is imported."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_traces import JSON, write_jsonl

from composer_replication.traces import Problem, import_traces, read_traces, readers
from composer_replication.traces import source as files
from composer_replication.types.errors import ConfigError

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
LINE = {"sessionId": "s", "type": "user", "uuid": "u1", "parentUuid": None, "message": {"role": "user", "content": "hi"}}


def test_hostile_files_are_told_and_stop_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE", 1 << 16)
    home = tmp_path / "in"
    write_jsonl(home / "good.jsonl", [CHAT])
    (home / "binary.jsonl").write_bytes(b"\x7fELF\0\0\1")
    (home / "latin.jsonl").write_bytes('{"a": "é"}'.encode("latin-1"))
    (home / "long.jsonl").write_text('{"a": "' + "x" * (1 << 17) + '"}\n' + json.dumps(CHAT) + "\n")
    (home / "deep.json").write_text("[" * 30_000 + "]" * 30_000)
    (home / "deepish.jsonl").write_text('{"messages": ' + '{"a": ' * 300 + "1" + "}" * 300 + "}\n")
    (home / "digits.jsonl").write_text('{"messages": ' + "9" * 5000 + "}\n")
    (home / "empty.jsonl").write_text("")
    (home / "nan.jsonl").write_text('{"a": NaN}\n')
    (home / "nul.jsonl").write_bytes(json.dumps(CHAT).encode() + b"\n\0\n")
    (home / "other.json").write_text('{"name": "package"}')
    (home / "torn.jsonl").write_text(json.dumps(CHAT) + '\n{"messages": [{"role": "us')
    (home / "wrong.jsonl").write_text('{"messages": [{"role": "assistant", "content": {"x": 1}, "tool_calls": 7}, 5]}\n')
    (home / "link.jsonl").symlink_to(home / "good.jsonl")
    (home / "loop").symlink_to(home)
    os.mkfifo(home / "pipe.jsonl")
    done = import_traces(home, tmp_path / "out")
    told = {problem.path.name: problem.reason for problem in done.problems}
    assert told == {
        "binary.jsonl": "binary, not text",
        "latin.jsonl": "not UTF-8",
        "long.jsonl": "a line of more than 0 MiB",
        "deep.json": "nested too deeply",
        "deepish.jsonl": "nested too deeply",
        "digits.jsonl": "a number with too many digits",
        "empty.jsonl": "empty",
        "nan.jsonl": "not JSON: NaN is not a number",
        "nul.jsonl": "binary, not text",
        "other.json": "no log of a known agent",
        "torn.jsonl": "not JSON: Unterminated string starting at (character 23); the file ends in the middle of a line",
        "wrong.jsonl": "message 1 is not an object",
        "link.jsonl": "a link; links are not followed",
        "loop": "a link; links are not followed",
        "pipe.jsonl": "not a regular file",
    }
    assert all("\n" not in str(problem) for problem in done.problems)
    assert done.traces == {"openai-chat": 4}  # good, and what is whole of long, nul and torn
    ids = [trace.trajectory_id for trace in read_traces(tmp_path / "out" / "traces.jsonl")]
    assert len(ids) == len(set(ids)) == 4


def test_half_a_surrogate_pair_becomes_what_the_model_saw(tmp_path):
    line = json.dumps({"messages": [{"role": "user", "content": "\ud83d!"}, {"role": "assistant", "content": "ok"}]})
    (tmp_path / "h.jsonl").write_text(line + "\n")
    import_traces(tmp_path / "h.jsonl", tmp_path / "out")
    (trace,) = read_traces(tmp_path / "out" / "traces.jsonl")
    assert trace.messages[0]["content"] == "\ufffd!"


def test_parents_that_run_in_a_circle(tmp_path):
    answer = {"role": "assistant", "id": "m1", "content": [{"type": "text", "text": "hello"}]}
    lines = [
        {**LINE, "uuid": "u1", "parentUuid": "a1"},
        {**LINE, "type": "assistant", "uuid": "a1", "parentUuid": "u1", "message": answer},
    ]
    problem, trace, *_ = list(readers()["claude-code"].read(write_jsonl(tmp_path / "c.jsonl", lines)))
    assert "circle" in problem.reason
    assert trace.turns[0].text == "hello"


@pytest.mark.slow
@given(st.data())
def test_no_reader_raises_for_what_a_file_holds(tmp_path_factory, data):
    """Records that look like each format, with anything in the place of everything."""
    seeds = st.sampled_from(SEEDS)
    records = [data.draw(seeds.flatmap(spoiled)) for _ in range(data.draw(st.integers(1, 4)))]
    folder = tmp_path_factory.mktemp("spoiled")
    lines = write_jsonl(folder / "a.jsonl", records)
    whole = folder / "b.json"
    whole.write_text(json.dumps(records[0]))
    events = folder / "events"
    for number, record in enumerate(records):
        write_jsonl(events / f"event-{number:05}-x.json", [record])
    for reader in readers().values():
        for path in (lines, whole, events):
            reader.sniff(path)
            for item in reader.read(path):
                if isinstance(item, Problem):
                    assert "\n" not in str(item)


def spoiled(record):
    """The record with any value at any one or two of its places."""
    places = list(_places(record))
    return st.lists(st.tuples(st.sampled_from(places), JSON), max_size=2).map(lambda edits: _edited(record, edits))


def _places(value, path=()):
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from _places(inner, (*path, key))


def _edited(record, edits):
    copy = json.loads(json.dumps(record))
    for path, value in edits:
        target = copy
        for key in path[:-1]:
            if not isinstance(target, dict | list) or (isinstance(target, list) and key not in range(len(target))):
                break
            target = target.get(key) if isinstance(target, dict) else target[key]
        else:
            if isinstance(target, dict) or (isinstance(target, list) and path[-1] in range(len(target))):
                target[path[-1]] = value
    return copy


CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
CHAT_CALL = {"role": "assistant", "content": "x", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "y"}]}
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a"}], "is_error": False}
META = {"id": "s", "cli_version": "1", "base_instructions": {"text": "Be"}, "git": {}}
CODE_CALL = {"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": "c1"}
STEP = {
    "step_id": 1,
    "source": "agent",
    "message": "m",
    "llm_call_count": 1,
    "is_copied_context": False,
    "extra": {"composer": {"details": {}, "context": [[0, 0]]}},
    "tool_calls": [
        {"tool_call_id": "c", "function_name": "f", "arguments": {}, "extra": {"composer": {"error": None, "raw": "x"}}}
    ],
    "observation": {
        "results": [{"content": "x", "extra": {"composer": {"call_id": "c", "name": "f", "status": "ok", "details": {}}}}]
    },
    "metrics": {"completion_token_ids": [1], "logprobs": [0.0]},
}
SEEDS = [
    {"messages": [{"role": "user", "content": "q"}, CHAT_CALL, RESULT], "tools": [{}], "id": 1, "resolved": True},
    {**LINE, "toolUseResult": {"interrupted": False}, "message": {"role": "user", "content": [TOOL_RESULT]}},
    {**LINE, "type": "assistant", "uuid": "a1", "parentUuid": "u1", "message": {"id": "m", "content": [TOOL_USE], "usage": {}}},
    {"type": "session_meta", "timestamp": "t", "payload": META},
    {"type": "response_item", "payload": CODE_CALL},
    {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "c1", "output": {"content": "x"}}},
    {"type": "compacted", "payload": {"message": "m", "replacement_history": [CODE_CALL]}},
    {
        "kind": "ActionEvent",
        "id": "e1",
        "llm_response_id": "r",
        "thought": [{"text": "x"}],
        "tool_call": {"name": "t", "arguments": "{}"},
    },
    {"kind": "ObservationEvent", "id": "e2", "tool_call_id": "c", "observation": {"kind": "TerminalObservation", "metadata": {}}},
    {"kind": "Condensation", "id": "e3", "forgotten_event_ids": ["e1"], "summary_offset": 0, "summary": "s"},
    {
        "messages": [{"role": "user", "content": "q"}],
        "response": {"choices": [{"message": CHAT_CALL}]},
        "timestamp": 1.0,
        "cost": 0,
    },
    {
        "trajectory": [
            {"action": "ls", "observation": "o", "response": "r", "thought": "t", "query": [RESULT], "tool_calls": [CALL]}
        ],
        "history": [{"role": "user", "content": "q", "tool_call_ids": ["x"]}],
        "info": {"model_stats": {}},
        "replay_config": {"agent": {"model": {"name": "m"}}},
    },
    {
        "trajectory_format": "mini-swe-agent-1.1",
        "messages": [CHAT_CALL, {**RESULT, "extra": {"returncode": 1}}, {"object": "response", "output": [CODE_CALL]}],
        "info": {"config": {"model": {"model_name": "m"}}},
    },
    {
        "schema_version": "ATIF-v1.8",
        "agent": {"name": "a", "version": "1"},
        "steps": [STEP],
        "extra": {"composer": {"reward": 1}},
    },
    {"trajectory_id": "t", "format": "f", "turns": [], "messages": [], "tools": [], "reward": None},
]


def test_nothing_there(tmp_path):
    with pytest.raises(ConfigError, match="there is nothing at"):
        import_traces(tmp_path / "none", tmp_path / "out")
    with pytest.raises(ConfigError, match="no reader of traces is called"):
        import_traces(tmp_path, tmp_path / "out", format="morse")
