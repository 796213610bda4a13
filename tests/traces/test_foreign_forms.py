"""Forms of logs that were met in the wild: lines out of order, other versions, datasets. The texts are made up."""

from __future__ import annotations

import json

import pytest
from made_traces import write_jsonl

from composer_replication.traces import Dropped, Problem, import_traces, read_traces, reader_for, states_from_traces
from composer_replication.traces.readers.openhands import PRINTED
from composer_replication.types.transcript import Trace


def read(format, path):  # noqa: A002
    reader = reader_for(format)
    assert reader.sniff(path)
    items = list(reader.read(path))
    assert [item for item in items if isinstance(item, Problem)] == []
    return [item for item in items if isinstance(item, Trace)]


def results(trace):
    return [(result.status, result.details.get("exit_code")) for turn in trace.turns for result in turn.results]


# --- Claude Code


def line(role, uuid, parent, content, **message):
    said = {"role": role, "content": content, **message}
    return {"type": role, "sessionId": "s", "uuid": uuid, "parentUuid": parent, "message": said}


def use(call_id, name="Bash"):
    return [{"type": "tool_use", "id": call_id, "name": name, "input": {"command": "ls"}}]


def outcome(call_id, content="a.py"):
    return [{"type": "tool_result", "tool_use_id": call_id, "content": content}]


def test_a_result_that_stands_before_its_call(tmp_path):
    lines = [
        line("user", "u1", None, "go"),
        line("assistant", "a1", "u1", use("t1"), id="m1"),
        line("user", "r2", "a2", outcome("t2", "second")),
        line("user", "r1", "a1", outcome("t1", "first")),
        line("assistant", "a2", "r1", use("t2"), id="m1"),
        line("assistant", "a3", "r2", [{"type": "text", "text": "done"}], id="m2"),
    ]
    (trace,) = read("claude-code", write_jsonl(tmp_path / "s.jsonl", lines))
    assert [[call.call_id for call in turn.tool_calls] for turn in trace.turns] == [["t1", "t2"], []]
    assert [message["content"] for message in trace.turns[1].context] == ["go", "", "first", "second"]
    assert ["incomplete" in turn.details for turn in trace.turns] == [False, False]


def test_a_chain_that_stands_in_reverse(tmp_path):
    lines = [
        line("assistant", "a2", "u2", [{"type": "text", "text": "two"}], id="m2"),
        line("user", "u2", "a1", "on"),
        line("assistant", "a1", "u1", [{"type": "text", "text": "one"}], id="m1"),
        line("user", "u1", None, "go"),
    ]
    (trace,) = read("claude-code", write_jsonl(tmp_path / "s.jsonl", lines))
    assert [turn.text for turn in trace.turns] == ["one", "two"]
    assert len(states_from_traces([trace])) == 2


def test_a_search_of_tools_answers_with_their_names(tmp_path):
    found = [{"type": "tool_reference", "tool_name": name} for name in ("WebFetch", "TaskList")]
    lines = [
        line("user", "u1", None, "go"),
        line("assistant", "a1", "u1", use("t1", "ToolSearch"), id="m1"),
        line("user", "r1", "a1", outcome("t1", found)),
        line("assistant", "a2", "r1", [{"type": "text", "text": "done"}], id="m2"),
    ]
    (trace,) = read("claude-code", write_jsonl(tmp_path / "s.jsonl", lines))
    assert trace.turns[1].context[-1]["content"] == "WebFetch\nTaskList"
    assert "incomplete" not in trace.turns[1].details


# --- mini-swe-agent 1


def answer(command, tag="bash"):
    return {"role": "assistant", "content": f"THOUGHT: look\n\n```{tag}\n{command}\n```"}


def returned(code, output=""):
    return {"role": "user", "content": f"<returncode>{code}</returncode>\n<output>\n{output}\n</output>"}


OPENING = [{"role": "system", "content": "Be."}, {"role": "user", "content": "Repair it."}]
MINI = [
    *OPENING,
    answer("cat a.py"),
    returned(0, "x = 1"),
    answer("pytst"),
    returned(127, "sh: pytst: not found"),
    {"role": "assistant", "content": "I am lost."},
    {"role": "user", "content": "Please always provide EXACTLY ONE action in triple backticks."},
    answer("sleep 99"),
    {"role": "user", "content": "The last command <command>sleep 99</command> timed out and has been killed."},
    answer("echo DONE && git diff"),
    {"role": "user", "content": "diff --git a/a.py b/a.py"},
]


def test_mini_swe_agent_1_writes_its_commands_in_its_text(tmp_path):
    record = {"trajectory_format": "mini-swe-agent-1", "messages": MINI, "info": {"mini_version": "1.15.0"}}
    (tmp_path / "m.traj.json").write_text(json.dumps(record, indent=1))
    (trace,) = read("mini-swe-agent", tmp_path / "m.traj.json")
    calls = [[call.arguments["command"] for call in turn.tool_calls] for turn in trace.turns]
    assert calls == [["cat a.py"], ["pytst"], [], ["sleep 99"], ["echo DONE && git diff"]]
    assert results(trace) == [("ok", 0), ("command_failed", 127), ("timeout", None), ("ok", None)]
    assert trace.details["text_actions"] is True
    assert [message["role"] for message in trace.turns[4].context] == [message["role"] for message in MINI[:-2]]
    assert not any("tool_calls" in message for message in trace.turns[4].context)


def test_messages_alone_are_a_conversation(tmp_path):
    path = tmp_path / "bare.json"
    path.write_text(json.dumps(MINI, indent=1))
    (trace,) = read("openai-chat", path)
    calls = [[call.arguments["command"] for call in turn.tool_calls] for turn in trace.turns]
    assert calls == [["cat a.py"], ["pytst"], [], [], []]  # only what says that it is a command's result
    assert results(trace) == [("ok", 0), ("command_failed", 127)]
    assert trace.details["text_actions"] is True
    two = write_jsonl(tmp_path / "two.jsonl", [MINI, MINI[:4]])
    assert [len(one.turns) for one in read("openai-chat", two)] == [5, 1]
    (tmp_path / "list.json").write_text(json.dumps([MINI, MINI[:4]]))
    assert [len(one.turns) for one in read("openai-chat", tmp_path / "list.json")] == [5, 1]


def test_from_and_value_are_role_and_content(tmp_path):
    said = [{"from": "system", "value": "Be."}, {"from": "human", "value": "Go."}, {"from": "gpt", "value": "Yes."}]
    path = write_jsonl(tmp_path / "share.jsonl", [{"id": "x", "conversations": said}, said])
    one, other = read("openai-chat", path)
    assert one.turns == other.turns
    assert [(m["role"], m["content"]) for m in one.turns[0].context] == [("system", "Be."), ("user", "Go.")]
    assert one.turns[0].text == "Yes."


def test_a_list_that_is_no_conversation_is_told(tmp_path):
    write_jsonl(tmp_path / "in" / "a.jsonl", [[1, 2], [{"role": "user"}]])
    done = import_traces(tmp_path / "in", tmp_path / "out")
    assert [problem.reason for problem in done.problems] == ["not a JSON object"]


# --- tau-bench


def test_results_of_tau_bench(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    said = {"role": "tool", "tool_call_id": "c1", "name": "find", "content": "Error: user not found"}
    runs = [{"task_id": i, "reward": reward, "info": {}, "traj": [*OPENING, asked, said]} for i, reward in enumerate((0.0, 1.0))]
    (tmp_path / "gpt.json").write_text(json.dumps(runs))
    traces = read("openai-chat", tmp_path / "gpt.json")
    assert [(one.trajectory_id, one.task_id, one.reward) for one in traces] == [("gpt:1", "0", 0.0), ("gpt:2", "1", 1.0)]


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ({"reward": 0.25}, 0.25),
        ({"reward": 1}, 1.0),
        ({"reward": True}, 1.0),
        ({"reward": "1"}, None),
        ({"resolved": 0, "reward": 1}, 0.0),
        ({"success": 1}, 1.0),
        ({"success": 0.5}, None),
        ({"target": 3}, None),
        ({"resolved": False, "success": 1}, 0.0),
    ],
)
def test_verdicts_and_rewards(tmp_path, said, reward):
    (trace,) = read("openai-chat", write_jsonl(tmp_path / "a.jsonl", [{"messages": [*OPENING, answer("ls")], **said}]))
    assert trace.reward == reward


# --- OpenHands


def event(kind, number, **fields):
    return {"kind": kind, "id": f"e{number}", "source": "agent", **fields}


EVENTS = [
    event("MessageEvent", 1, llm_message={"role": "user", "content": [{"type": "text", "text": "Go."}]}),
    event(
        "ActionEvent",
        2,
        llm_response_id="r1",
        tool_name="terminal",
        tool_call_id="c1",
        thought=[],
        tool_call={"id": "c1", "name": "terminal", "arguments": '{"command": "pytst"}'},
    ),
    event(
        "ObservationEvent",
        3,
        tool_name="terminal",
        tool_call_id="c1",
        observation={
            "kind": "TerminalObservation",
            "content": [{"type": "text", "text": "no"}],
            "metadata": {"exit_code": 127},
        },
    ),
    event("MessageEvent", 4, llm_message={"role": "assistant", "content": [{"type": "text", "text": "Done."}]}),
]


def test_what_the_command_line_of_openhands_prints(tmp_path):
    words = ["Initializing agent...", "\x1b[32mready\x1b[0m", ""]
    lines = [*words, *map(json.dumps, EVENTS), "", "CONVERSATION SUMMARY"]
    (tmp_path / "task.jsonl").write_text("\n".join(lines) + "\n")
    (trace,) = read("openhands", tmp_path / "task.jsonl")
    assert (trace.trajectory_id, results(trace)) == ("task", [("command_failed", 127)])
    dropped = [one for one in reader_for("openhands").read(tmp_path / "task.jsonl") if isinstance(one, Dropped)]
    assert [(one.reason, one.count) for one in dropped] == [(PRINTED, 3)]
    (tmp_path / "whole.json").write_text(json.dumps(EVENTS, indent=1))
    (whole,) = read("openhands", tmp_path / "whole.json")
    assert whole.turns == trace.turns
    done = import_traces(tmp_path / "task.jsonl", tmp_path / "out")
    assert done.traces == {"openhands": 1}


def test_an_event_that_was_cut_is_told(tmp_path):
    lines = [*map(json.dumps, EVENTS[:2]), json.dumps(EVENTS[2])[:90], json.dumps(EVENTS[3])]
    (tmp_path / "task.jsonl").write_text("ready\n" + "\n".join(lines) + "\n")
    problem, *_, trace = reader_for("openhands").read(tmp_path / "task.jsonl")
    assert problem.line == 4
    assert [turn.details.get("incomplete") for turn in trace.turns] == ["an event", "an event"]


def test_a_single_event_of_a_folder_is_no_conversation(tmp_path):
    write_jsonl(tmp_path / "event-00000-x.json", [EVENTS[0]])
    assert not reader_for("openhands").sniff(tmp_path / "event-00000-x.json")


def completion(number, messages, call):
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"messages": messages, "response": {"choices": [{"message": called}]}, "timestamp": float(number)}


def wire(number, name, **arguments):
    return {"id": f"toolu_0{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def test_results_for_a_model_without_native_calls(tmp_path):
    first = wire(1, "terminal", command="pytst")
    second = wire(2, "file_editor", command="view", path="a.py")
    text = {"role": "assistant", "content": "<function=terminal>\n<parameter=command>pytst</parameter>\n</function>"}
    failed = "bash: pytst: command not found\n[Command finished with exit code 127]"
    failed = {"role": "user", "content": f"EXECUTION RESULT of [terminal]:\n{failed}"}
    view = {"role": "assistant", "content": "<function=file_editor>\n</function>"}
    refused = "Invalid `path` parameter: a.py. The path should be an absolute path, starting with `/`."
    refused = {"role": "user", "content": f"EXECUTION RESULT of [file_editor]:\n{refused}"}
    requests = [[*OPENING], [*OPENING, text, failed], [*OPENING, text, failed, view, refused]]
    (tmp_path / "logs").mkdir()
    for number, (sent, call) in enumerate(zip(requests, (first, second, wire(3, "finish")), strict=True)):
        (tmp_path / "logs" / f"{number}.json").write_text(json.dumps(completion(number, sent, call)))
    (trace,) = read("openhands", tmp_path / "logs")
    assert results(trace) == [("command_failed", 127), ("invalid_arguments", None)]
    assert trace.turns[0].results[0].content.startswith("bash: pytst")
    assert [message["role"] for message in trace.turns[2].context] == ["system", "user", "assistant", "user", "assistant", "user"]


# --- SWE-agent


@pytest.mark.parametrize(
    ("action", "observation", "status"),
    [
        (
            "edit 2:2\nx = (\nend_of_edit",
            "Your proposed edit has introduced new syntax error(s). Please retry.",
            "edit_not_applied",
        ),
        ("edit 2:2\nx = 1\nend_of_edit", "No file opened. Use the `open` command first.", "edit_not_applied"),
        ("edit 2\nx = 1", "Usage: edit <start_line>:<end_line>", "invalid_arguments"),
        ("goto x", "Usage: goto <line>\nError: <line> must be a number", "invalid_arguments"),
        ("open gone.py", "File gone.py not found", "path_not_found"),
        ("search_dir x gone", "Directory gone not found", "path_not_found"),
        ("submit 'a'", "Wrong flag!", "command_failed"),
        ("cat help.txt", "Usage: edit <start_line>:<end_line>", "ok"),
        ("python edit.py", "File gone.py not found", "ok"),
    ],
)
def test_words_of_commands_that_swe_agent_adds(tmp_path, action, observation, status):
    step = {"action": action, "observation": observation, "response": f"```\n{action}\n```", "thought": "t"}
    (tmp_path / "a.traj").write_text(json.dumps({"trajectory": [step], "history": OPENING, "info": {}}))
    (trace,) = read("swe-agent", tmp_path / "a.traj")
    assert [result.status for result in trace.turns[0].results] == [status]


# --- words of tools

VIEW = {"command": "view", "path": "/a"}


@pytest.mark.parametrize(
    ("name", "arguments", "content", "status"),
    [
        ("request_user_input", {}, "request_user_input is unavailable in Default mode", "unknown_tool"),
        ("Read", {"file_path": "/a"}, "File content (403.3KB) exceeds maximum allowed size (256KB).", "invalid_arguments"),
        ("Read", {"file_path": "/a"}, "File content (30000 tokens) exceeds maximum allowed tokens (25000).", "invalid_arguments"),
        ("file_editor", VIEW, "Invalid `path` parameter: a. The path should be an absolute path", "invalid_arguments"),
        ("file_editor", VIEW, "Invalid `path` parameter: /a. The path /a does not exist.", "path_not_found"),
        ("file_editor", VIEW, "Ran into [Errno 2] No such file or directory: '/a' while trying to read", "path_not_found"),
        ("Bash", {"command": "x"}, "<tool_use_error>InputValidationError: Bash failed</tool_use_error>", "invalid_arguments"),
        ("Read", {"file_path": "/a"}, "     1\tRan into [Errno 2] No such file", "ok"),
    ],
)  # fmt: skip
def test_words_with_which_tools_refuse(tmp_path, name, arguments, content, status):
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    messages = [*OPENING, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c1", "content": content}]
    write_jsonl(tmp_path / "a.jsonl", [{"messages": messages}])
    import_traces(tmp_path / "a.jsonl", tmp_path / "out")
    (trace,) = read_traces(tmp_path / "out" / "traces.jsonl")
    assert [result.status for result in trace.turns[0].results] == [status]
