"""Every context is exactly what a scripted server received while the agent itself wrote the log; what a log lacks is told."""

from __future__ import annotations

import json

import pytest
from oracle import FIXTURES, received, shown

from composer_replication.traces import Dropped, Problem, reader_for, states_from_traces
from composer_replication.traces.readers.claude_code import FILLER, SIDE_CHAIN
from composer_replication.traces.readers.codex import SUMMARY
from composer_replication.traces.readers.swe_agent import NO_QUERY
from composer_replication.types.transcript import Trace


def read(format, path):  # noqa: A002
    reader = reader_for(format)
    assert reader.sniff(path)
    items = list(reader.read(path))
    assert [item for item in items if isinstance(item, Problem)] == []
    return [i for i in items if isinstance(i, Trace)], {i.reason: i.count for i in items if isinstance(i, Dropped)}


def contexts_are(trace, requests, **options):
    assert len(trace.turns) == len(requests)
    for turn, (messages, answer) in zip(trace.turns, requests, strict=True):
        assert shown(turn.context, **options) == messages
        assert turn.text == answer.get("text", "")
        assert [call.name for call in turn.tool_calls] == [call["name"] for call in answer.get("calls", ())]


def statuses(trace):
    return [result.status for turn in trace.turns for result in turn.results]


@pytest.mark.parametrize("name", ["fix", "errors", "text"])
def test_mini_swe_agent(name):
    """Nothing is missing: system prompt, rejected answers and all."""
    folder = FIXTURES / "mini_swe_agent"
    (trace,), dropped = read("mini-swe-agent", folder / f"{name}.traj.json")
    requests = received(folder / f"{name}.requests.json")
    assert dropped == {}
    assert len(trace.turns) == len(requests)
    for turn, (messages, answer) in zip(trace.turns, requests, strict=True):
        assert shown(turn.context) == messages
        assert turn.text == (answer["text"] or "")


def test_what_came_of_the_calls_of_mini_swe_agent():
    (fix,), _ = read("mini-swe-agent", FIXTURES / "mini_swe_agent" / "fix.traj.json")
    assert statuses(fix) == ["ok", "ok", "tests_failed", "ok", "ok"]
    assert fix.turns[0].reasoning == "What is there?"
    assert fix.details["exit_status"] == "Submitted"
    (errors,), _ = read("mini-swe-agent", FIXTURES / "mini_swe_agent" / "errors.traj.json")
    assert statuses(errors) == ["command_failed", "command_failed", "timeout"]
    assert errors.turns[1].tool_calls[0].error.startswith("bad JSON")
    (text,), _ = read("mini-swe-agent", FIXTURES / "mini_swe_agent" / "text.traj.json")
    assert text.tools == ()
    assert text.turns[0].tool_calls[0].arguments == {"command": "cat shop.py"}


@pytest.mark.parametrize("name", ["fix", "errors", "resumed", "compacted"])
def test_codex(name):
    """Missing are the system prompt, which is the first item of every request, and the tools; nothing else."""
    folder = FIXTURES / "codex"
    (trace,), dropped = read("codex", folder / f"{name}.jsonl")
    contexts_are(trace, received(folder / f"{name}.requests.json", skip=1))
    assert dropped == ({SUMMARY: 1} if name == "compacted" else {})
    assert trace.tools == ()


def test_what_came_of_the_calls_of_codex():
    (fix,), _ = read("codex", FIXTURES / "codex" / "fix.jsonl")
    assert statuses(fix) == ["ok", "ok", "tests_failed", "edit_not_applied", "ok", "ok"]
    assert fix.turns[0].reasoning == "I should look first."
    (errors,), _ = read("codex", FIXTURES / "codex" / "errors.jsonl")
    assert statuses(errors) == ["command_failed", "malformed_call", "unknown_tool", "unknown_tool", "command_failed"]


@pytest.mark.parametrize("name", ["fix", "text", "old"])
def test_swe_agent(name):
    """Built to the layout, not recorded. A query is what the model saw, with old observations shortened; `old` has none."""
    path = FIXTURES / "swe_agent" / f"{name}.traj"
    (trace,), dropped = read("swe-agent", path)
    steps = json.loads(path.read_text())["trajectory"]
    assert dropped == {}
    assert [turn.text for turn in trace.turns] == [step["response"] for step in steps]
    if name == "old":
        assert {turn.details["incomplete"] for turn in trace.turns} == {NO_QUERY}
        assert states_from_traces([trace]) == []
        return
    for turn, step in zip(trace.turns, steps, strict=True):
        assert [m["content"] for m in turn.context] == [m["content"] for m in step["query"]]
        assert [m["role"] for m in turn.context] == [m["role"] for m in step["query"]]
    assert trace.turns[4].context[3]["content"] == "Old environment output: (1 lines omitted)"
    assert trace.turns[1].context[3]["content"].startswith("OBSERVATION:\ndef total")
    edit = "edit_not_applied" if name == "fix" else "ok"
    assert statuses(trace) == ["ok", "tests_failed", edit, "ok", "ok"]
    states = states_from_traces([trace])
    native = name == "fix"
    assert states[0]["student_action"].startswith('{"name": "bash"' if native else "DISCUSSION\nI look first.")


@pytest.mark.parametrize("form", ["events", "completions"])
@pytest.mark.parametrize("name", ["fix", "errors", "condensed"])
def test_openhands(name, form):
    """Events and logged completions tell the same; the tools' schemas are missing. Of `condensed` only the events are kept."""
    folder = FIXTURES / "openhands"
    if (name, form) == ("condensed", "completions"):
        assert not (folder / name / form).exists()
        return
    (trace,), dropped = read("openhands", folder / name / form)
    contexts_are(trace, received(folder / f"{name}.requests.json"))
    assert dropped == {}
    assert trace.tools == ()


def test_what_came_of_the_calls_of_openhands():
    for form in ("events", "completions"):
        (fix,), _ = read("openhands", FIXTURES / "openhands" / "fix" / form)
        assert statuses(fix)[:6] == ["ok", "ok", "tests_failed", "edit_not_applied", "ok", "ok"]
        (errors,), _ = read("openhands", FIXTURES / "openhands" / "errors" / form)
        assert statuses(errors) == ["path_not_found", "malformed_call", "unknown_tool", "command_failed"]


def _renamed(message):
    role, text, calls, call_id = message
    return role, text, tuple(("Task" if name == "Agent" else name, arguments) for name, arguments in calls), call_id


SUMMARIZE = "[a line of the program's prose, bb5bc6ef]"


def reminder(role, text):
    return role == "system" or text.startswith("<system-reminder>")


@pytest.mark.parametrize("name", ["fix", "errors", "delegate", "resumed", "compacted"])
def test_claude_code(name):
    """Missing are the system prompt, the tools and the reminders that the program puts between a user's words."""
    folder = FIXTURES / "claude_code"
    (trace,), dropped = read("claude-code", folder / f"{name}.jsonl")
    requests = received(folder / f"{name}.requests.json", drop=reminder, users=True, skip=1)
    own = [r for r in requests if r[0][0] != ("user", "Count the files here.", (), "") and SUMMARIZE not in r[0][-1][1]]
    if name == "delegate":  # called by the name that is sent instead of its alias
        own = [([_renamed(message) for message in messages], answer) for messages, answer in own]
    contexts_are(trace, own, users=True)
    assert trace.tools == ()
    assert dropped == ({FILLER: 1} if name == "compacted" else {})


def test_what_came_of_the_calls_of_claude_code():
    (fix,), _ = read("claude-code", FIXTURES / "claude_code" / "fix.jsonl")
    assert statuses(fix) == ["ok", "ok", "tests_failed", "edit_not_applied", "ok", "unknown_tool", "ok"]
    assert fix.turns[1].results[0].details["failed"] == ["test_shop.py::test_total"]
    (errors,), _ = read("claude-code", FIXTURES / "claude_code" / "errors.jsonl")
    assert statuses(errors) == ["path_not_found", "invalid_arguments", "command_failed", "timeout", "ok"]
    side = list((FIXTURES / "claude_code" / "delegate").rglob("*.jsonl"))
    assert len(side) == 1
    traces, dropped = read("claude-code", side[0])
    assert traces == []
    assert list(dropped) == [SIDE_CHAIN]
