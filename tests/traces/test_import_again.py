"""Imports that meet an earlier one, and commands that meet a file that is not theirs."""

from __future__ import annotations

import json
import shutil

import pytest
from in_process import invoke
from made_traces import write_jsonl
from oracle import FIXTURES

from composer_replication.cli import app
from composer_replication.traces import import_traces, read_traces
from composer_replication.types.errors import ConfigError, StorageError, TraceError

CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}


def composer(*words):
    return invoke(app, *words)


def chat(path, *names, turns=1, calls=()):
    said = [{"role": "assistant", "content": "ok", **({"tool_calls": list(calls)} if calls else {})}] * turns
    return write_jsonl(path, [{"id": name, "messages": [{"role": "user", "content": "hi"}, *said]} for name in names])


def names(folder):
    return [trace.trajectory_id for trace in read_traces(str(folder / "traces.jsonl"))]


def test_what_is_no_trace_leaves_an_earlier_import_as_it_was(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    out = tmp_path / "out"
    with pytest.raises(TraceError, match="is a trace"):
        composer("traces", "import", tmp_path / "empty.jsonl", "--out", out)
    assert not out.exists()
    import_traces(chat(tmp_path / "two.jsonl", "a", "b"), out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(TraceError, match=r"the earlier import in .* stays as it is"):
        composer("traces", "import", tmp_path / "empty.jsonl", "--out", out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_an_import_that_would_lose_traces_is_refused(tmp_path):
    two, one, longer = (
        chat(tmp_path / f"{n}.jsonl", *ids, turns=t) for n, ids, t in (("2", "ab", 2), ("1", "a", 2), ("l", "ab", 3))
    )
    out = tmp_path / "out"
    composer("traces", "import", two, "--out", out)
    with pytest.raises(ConfigError, match="2 traces of an earlier import, and 1 of them") as caught:
        composer("traces", "import", one, "--out", out)
    assert "--overwrite" in caught.value.fix
    assert names(out) == ["a", "b"]
    assert sorted(file.name for file in out.iterdir()) == ["import.json", "traces.jsonl"]
    composer("traces", "import", longer, "--out", out)  # the same, grown
    with pytest.raises(ConfigError, match="2 of them"):
        composer("traces", "import", two, "--out", out)
    composer("traces", "import", one, "--out", out, "--overwrite")
    assert names(out) == ["a"]


@pytest.mark.parametrize("command", ["states", "export", "hints"])
def test_a_file_that_ends_in_the_middle_of_a_line(tmp_path, command):
    import_traces(chat(tmp_path / "a.jsonl", "a", "b"), tmp_path / "out")
    file = tmp_path / "out" / "traces.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    words = {
        "states": ["traces", "states", tmp_path / "out", "--out", tmp_path / "s.jsonl"],
        "export": ["traces", "export", tmp_path / "out", "--atif", tmp_path / "atif"],
        "hints": ["hints", "explain", tmp_path / "out"],
    }
    with pytest.raises(StorageError, match="line 2: the file ends in the middle of it"):
        composer(*words[command])
    assert not (tmp_path / "s.jsonl").exists()


def test_states_that_name_no_tools_are_told(tmp_path):
    log = chat(tmp_path / "a.jsonl", "a", calls=[CALL])
    said = "1 of 1 states name no tools: give `composer traces import --tools FILE`"
    assert said in composer("traces", "import", log, "--out", tmp_path / "out").stderr
    assert said in composer("traces", "states", tmp_path / "out" / "traces.jsonl", "--out", tmp_path / "s").stderr
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "bash", "description": "Runs", "input_schema": {"type": "object"}}]))
    assert "no tools" not in composer("traces", "import", log, "--out", tmp_path / "out", "--tools", tools).stderr


def test_no_states_is_an_error_and_writes_nothing(tmp_path):
    import_traces(FIXTURES / "swe_agent" / "old.traj", tmp_path / "out")
    with pytest.raises(TraceError, match="no states"):
        composer("traces", "states", tmp_path / "out", "--out", tmp_path / "s.jsonl")
    assert not (tmp_path / "s.jsonl").exists()
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(TraceError, match="no transcripts"):
        composer("hints", "explain", tmp_path / "empty.jsonl")


def test_a_conversation_that_is_there_twice_is_taken_once(tmp_path):
    done = import_traces(FIXTURES / "openhands", tmp_path / "out")
    assert done.traces == {"openhands": 3}
    assert sum(done.dropped["openhands"].values()) == 2
    assert names(tmp_path / "out") == ["condensed", "errors", "fix"]


def test_another_attempt_with_the_same_ids_is_no_twin(tmp_path):
    for run, command in (("one", None), ("two", "ls somewhere/else")):
        shutil.copytree(FIXTURES / "openhands" / "fix" / "events", tmp_path / "logs" / run)
        for file in (tmp_path / "logs" / run).iterdir():
            event = json.loads(file.read_text())
            action = event.get("action")
            if command and isinstance(action, dict) and "command" in action:
                action["command"] = command
                if isinstance(event.get("tool_call"), dict):
                    event["tool_call"]["arguments"] = json.dumps({"command": command})
                file.write_text(json.dumps(event))
    done = import_traces(tmp_path / "logs", tmp_path / "out")
    assert done.traces == {"openhands": 2}, done.dropped


def test_states_do_not_replace_the_import_they_are_of(tmp_path):
    import_traces(chat(tmp_path / "c.jsonl", "a"), tmp_path / "out")
    with pytest.raises(ConfigError, match="the same file"):
        composer("traces", "states", tmp_path / "out", "--out", tmp_path / "out" / "traces.jsonl")
    assert names(tmp_path / "out") == ["a"]


def test_hints_name_the_log(tmp_path):
    import_traces(FIXTURES / "openhands", tmp_path / "out")
    said = composer("hints", "explain", tmp_path / "out").stdout
    assert "errors/completions: errors (" in said
    assert "traces.jsonl:" not in said
    import_traces(tmp_path / "out", tmp_path / "again")
    assert list(read_traces(tmp_path / "again" / "traces.jsonl")) == list(read_traces(tmp_path / "out" / "traces.jsonl"))


def test_a_tree_of_other_files_is_told_in_a_few_lines(tmp_path):
    chat(tmp_path / "src" / "a.jsonl", "a")
    for number in range(30):
        (tmp_path / "src" / f"{number}.py").write_text("x = 1\n")
    said = composer("traces", "import", tmp_path / "src", "--out", tmp_path / "out").stderr
    assert said.count("not read: ") == 11
    assert "not read: 20 more: all are in" in said
    assert len(json.loads((tmp_path / "out" / "import.json").read_text())["problems"]) == 30


def test_another_kind_of_file_names_the_command_that_is_meant(tmp_path):
    log = tmp_path / "fix.jsonl"
    shutil.copy(FIXTURES / "claude_code" / "fix.jsonl", log)
    out, states = tmp_path / "out", tmp_path / "states.jsonl"
    importing = f"`composer traces import {log} --out traces`"
    teachers = tmp_path / "t.toml"
    teachers.write_text('[[teachers]]\nname = "j"\nmodel = "m"\nbase_url = "http://127.0.0.1:1/v1"\napi_key_env = ""\n')
    import_traces(log, out)
    composer("traces", "states", out, "--out", states)
    cases = [
        (["hints", "explain", log], importing),
        (["hints", "explain", states], "name the traces that the states were made from"),
        (["traces", "states", log, "--out", "s"], importing),
        (["traces", "export", states, "--atif", "a"], "name the traces"),
        (["prm", "score", states, "--model", "m"], "name the traces"),
        (["prm", "score", out, "--model", "m"], f"name {out / 'traces.jsonl'}"),
        (["prm", "score", log, "--model", "m"], importing),
        (["plan", out / "traces.jsonl", "--teachers", teachers], f"`composer traces states {out / 'traces.jsonl'} --out"),
        (["plan", out, "--teachers", teachers], f"`composer traces states {out} --out"),
        (["plan", log, "--teachers", teachers], f"{importing}, then `composer traces states traces"),
    ]
    for words, fix in cases:
        with pytest.raises(ConfigError) as caught:
            composer(*words)
        assert fix in caught.value.fix, words


def test_the_fix_of_a_disk_error_is_of_the_command(tmp_path):
    log = chat(tmp_path / "a.jsonl", "a")
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    out = tmp_path / "out"
    composer("traces", "import", log, "--out", out)
    cases = [
        (["traces", "states", out, "--out", tmp_path / "folder"], f"{tmp_path / 'folder'} is a folder: name a file"),
        (["traces", "states", out, "--out", tmp_path / "file" / "s"], f"{tmp_path / 'file'} is a file: name a folder"),
        (["traces", "export", out, "--atif", tmp_path / "file" / "a"], f"{tmp_path / 'file'} is a file: name a folder"),
    ]
    for words, fix in cases:
        with pytest.raises(StorageError) as caught:
            composer(*words)
        assert caught.value.fix.startswith(fix), words
        assert "train" not in str(caught.value)
        assert "run directory" not in str(caught.value)
