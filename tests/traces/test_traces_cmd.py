"""`composer traces`, run as a command."""

from __future__ import annotations

import json

from in_process import composer_here
from made_traces import write_jsonl
from oracle import FIXTURES


def composer(*words):
    return composer_here("traces", *words)


def test_import_states_and_export(tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "exec_command", "description": "Runs", "input_schema": {"type": "object"}}]))
    (tmp_path / "logs").mkdir()
    for file in ("codex/fix.jsonl", "mini_swe_agent/errors.traj.json", "swe_agent/old.traj"):
        (tmp_path / "logs" / file.replace("/", "-")).write_bytes((FIXTURES / file).read_bytes())
    (tmp_path / "logs" / "noise.txt").write_text("hello\n")
    done = composer("import", tmp_path / "logs", "--out", tmp_path / "out", "--tools", tools)
    assert done.returncode == 0, done.stderr
    assert "not read: " in done.stderr
    assert "noise.txt: not JSON" in done.stderr.replace("noise.txt:1:", "noise.txt:")
    assert f"3 traces with 17 turns in {tmp_path / 'out' / 'traces.jsonl'}" in done.stdout
    account = json.loads((tmp_path / "out" / "import.json").read_text())
    assert account["traces"] == {"codex": 1, "mini-swe-agent": 1, "swe-agent": 1}

    done = composer("states", tmp_path / "out", "--out", tmp_path / "states.jsonl")
    assert done.stdout == f"12 states in {tmp_path / 'states.jsonl'}; 5 turns left out, whose context is incomplete\n"
    states = [json.loads(line) for line in (tmp_path / "states.jsonl").read_text().splitlines()]
    assert states[0]["tools"][0]["function"]["parameters"] == {"type": "object"}
    assert states[0]["student_action"].startswith('{"name": "exec_command"')

    done = composer("export", tmp_path / "out", "--atif", tmp_path / "atif")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "atif").iterdir())) == 3
    again = composer("import", tmp_path / "atif", "--out", tmp_path / "again")
    assert again.returncode == 0, again.stderr

    def lines(name):
        return sorted((tmp_path / name / "traces.jsonl").read_text().splitlines())

    assert lines("again") == lines("out")


def test_exit_codes(tmp_path):
    assert composer("import", tmp_path / "none", "--out", tmp_path / "out").returncode == 2
    chat = write_jsonl(tmp_path / "a.jsonl", [{"name": "no chat"}])
    done = composer("import", chat, "--out", tmp_path / "out")
    assert done.returncode == 9
    assert "is a trace" in done.stderr
    assert not (tmp_path / "out").exists(), "an import of nothing leaves nothing"
    kept = tmp_path / "kept"
    assert composer("import", FIXTURES / "codex" / "fix.jsonl", "--out", kept).returncode == 0
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    assert composer("import", chat, "--out", kept).returncode == 9
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert composer("import", chat, "--out", tmp_path / "out", "--format", "morse").returncode == 2
    assert composer("states", tmp_path / "nothing", "--out", tmp_path / "s").returncode == 2
