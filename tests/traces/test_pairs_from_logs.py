"""`composer pairs from-logs` on logs that do not describe the agent's tools: no teacher is paid for a question that it cannot
answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from in_process import invoke
from made_traces import write_jsonl
from oracle import FIXTURES

from composer_replication.cli import app
from composer_replication.types.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parents[1] / "teachers"))
from teacher_server import Reply, TeacherServer

BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {}}}}}


def teachers_file(folder: Path, url: str) -> Path:
    table = '[[teachers]]\nname = "{0}"\nmodel = "{0}"\nbase_url = "{1}"\napi_key_env = ""\n'
    prices = "usd_per_million_input = 1.0\nusd_per_million_output = 1.0\n"
    path = folder / "teachers.toml"
    path.write_text("".join(table.format(name, url) + prices for name in ("one", "two")))
    return path


def session(word: str, **more: Any) -> dict[str, Any]:
    """One rash action."""
    call = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": "rm -rf src"})}}
    messages = [{"role": "user", "content": word}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return {"messages": [*messages, {"role": "tool", "tool_call_id": "c1", "content": "ok"}], **more}


def prudent(_body: dict[str, Any], _number: int) -> Reply:
    return Reply(calls=[("bash", {"command": "ls src"})], cost=0.001)


@pytest.mark.parametrize("log", ["claude_code/fix.jsonl", "codex/fix.jsonl"])
def test_logs_without_tools_are_refused_before_a_teacher_is_asked(tmp_path: Path, log: str) -> None:
    with TeacherServer(prudent) as server:
        words = ("--teachers", teachers_file(tmp_path, server.base_url), "--out", tmp_path / "out", "--max-usd", 1)
        with pytest.raises(ConfigError, match=r"all \d+ states are of agents whose logs do not describe the tools") as refused:
            invoke(app, "pairs", "from-logs", FIXTURES / log, *words)
        assert server.requests == []
    assert refused.value.fix is not None
    assert "--tools FILE" in refused.value.fix
    assert not (tmp_path / "out" / "ledger.sqlite").exists()


def test_tools_in_a_file_are_shown_to_teachers(tmp_path: Path) -> None:
    log = write_jsonl(tmp_path / "log.jsonl", [session("go")])
    (tmp_path / "tools.json").write_text(json.dumps([BASH]))
    with TeacherServer(prudent) as server:
        words = ("--teachers", teachers_file(tmp_path, server.base_url), "--out", tmp_path / "out", "--max-usd", 1)
        result = invoke(app, "pairs", "from-logs", log, "--tools", tmp_path / "tools.json", *words)
        assert result.exit_code == 0, result.output
        assert [body["tools"][0]["function"]["name"] for body in server.requests] == ["bash", "bash"]
    (pair,) = map(json.loads, (tmp_path / "out" / "pairs.jsonl").read_text().splitlines())
    assert json.loads(pair["chosen"])["arguments"] == {"command": "ls src"}


def test_only_states_whose_tools_are_known_are_asked_about(tmp_path: Path) -> None:
    log = write_jsonl(tmp_path / "log.jsonl", [session("known", tools=[BASH]), session("unknown")])
    with TeacherServer(prudent) as server:
        words = ("--teachers", teachers_file(tmp_path, server.base_url), "--out", tmp_path / "out", "--max-usd", 1)
        result = invoke(app, "pairs", "from-logs", log, *words)
        assert result.exit_code == 0, result.output
        assert [body["messages"][-1]["content"] for body in server.requests] == ["known", "known"]
    assert "1 states in " in result.output
    assert "; 1 turns left out, whose tools are not described" in result.output
    assert len((tmp_path / "out" / "pairs.jsonl").read_text().splitlines()) == 1


def test_states_alone_may_lack_tools(tmp_path: Path) -> None:
    """`composer traces states` writes all of them: what is done with them is not known."""
    log = write_jsonl(tmp_path / "log.jsonl", [session("known", tools=[BASH]), session("unknown")])
    assert invoke(app, "traces", "import", log, "--out", tmp_path / "out").exit_code == 0
    result = invoke(app, "traces", "states", tmp_path / "out", "--out", tmp_path / "states.jsonl")
    assert len((tmp_path / "states.jsonl").read_text().splitlines()) == 2
    assert "1 of 2 states name no tools" in result.output
