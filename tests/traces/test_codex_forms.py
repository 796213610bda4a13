"""Codex's other forms: its shell's names, scripts of code mode, usage that is told in the midst of an answer."""

from __future__ import annotations

import pytest
from made_traces import write_jsonl

from composer_replication.traces import import_traces, read_traces, reader_for, states_from_traces, write_atif
from composer_replication.traces.readers.scripts import call_in
from composer_replication.types.transcript import Trace

ASKED = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Repair it."}]}
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n+x = 2\n*** End Patch"


def item(payload):
    return {"type": "response_item", "payload": payload}


def called(name, arguments, call_id="c1"):
    return item({"type": "function_call", "name": name, "arguments": arguments, "call_id": call_id})


def script(text, call_id="c1"):
    return item({"type": "custom_tool_call", "name": "exec", "input": text, "call_id": call_id})


def told(output, call_id="c1", kind="function_call_output"):
    return item({"type": kind, "call_id": call_id, "output": output})


def used(total, **info):
    usage = {"total_token_usage": {"total_tokens": total}, "last_token_usage": {"total_tokens": 7}, **info}
    return {"type": "event_msg", "payload": {"type": "token_count", "info": usage}}


def read(tmp_path, *lines):
    path = write_jsonl(tmp_path / "rollout.jsonl", [{"type": "session_meta", "payload": {"id": "s"}}, item(ASKED), *lines])
    assert reader_for("codex").sniff(path)
    (trace,) = [one for one in reader_for("codex").read(path) if isinstance(one, Trace)]
    return trace


@pytest.mark.parametrize("name", ["shell_command", "container.exec", "exec_command", "shell"])
@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("Exit code: 0\nWall time: 0.1 seconds\nOutput:\na.py", "ok"),
        ("Exit code: 1\nWall time: 0.1 seconds\nOutput:\nno", "command_failed"),
        ("Exit code: 124\nWall time: 10 seconds\nOutput:\ncommand timed out after 10012 milliseconds", "timeout"),
    ],
)
def test_every_name_of_the_shell_is_one(tmp_path, name, output, status):
    trace = read(tmp_path, called(name, '{"command": "make it"}'), told(output))
    assert [result.status for result in trace.turns[0].results] == [status]


def test_usage_that_has_not_grown_ends_no_answer(tmp_path):
    thought = item({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look."}]})
    limits = {"type": "event_msg", "payload": {"type": "token_count", "info": None, "rate_limits": {}}}
    call = called("shell", '{"command": ["ls"]}')
    trace = read(tmp_path, used(5), thought, used(5), limits, call, used(12), told("a.py"), used(12))
    (turn,) = trace.turns
    assert (turn.reasoning, [one.name for one in turn.tool_calls]) == ("Look.", ["shell"])
    assert turn.details["usage"] == {"total_tokens": 7}


def test_usage_that_has_grown_ends_an_answer(tmp_path):
    answer = item({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]})
    trace = read(tmp_path, answer, used(5), answer, used(9))
    assert len(trace.turns) == 2


def test_a_script_with_one_call_is_that_call(tmp_path):
    text = 'const r = await tools.exec_command({"cmd":"cat a.py","workdir":"/w"});\ntext(r.output);'
    output = [{"type": "input_text", "text": "Script completed\nWall time 0.1 seconds\nOutput:\n"}]
    shown = [*output, {"type": "input_text", "text": "x = 1\n"}]
    end = item({"type": "message", "role": "assistant", "content": "done"})
    trace = read(tmp_path, script(text), told(shown, kind="custom_tool_call_output"), end)
    (call,) = trace.turns[0].tool_calls
    assert (call.name, call.arguments) == ("exec_command", {"cmd": "cat a.py", "workdir": "/w"})
    _, asked, answered = trace.turns[1].context  # as the model wrote and read it
    assert asked["tool_calls"][0]["function"] == {"name": "exec", "arguments": {"input": text}}
    assert (answered["name"], answered["content"]) == ("exec", "Script completed\nWall time 0.1 seconds\nOutput:\n\nx = 1\n")
    (state, _) = states_from_traces([trace])  # what a teacher is compared with is what the model wrote
    assert state["student_tool_calls"][0]["function"] == {"name": "exec", "arguments": {"input": text}}
    assert "incomplete" not in trace.turns[1].details
    (written,) = write_atif([trace], tmp_path / "atif")
    import_traces(written, tmp_path / "back")
    (back,) = read_traces(tmp_path / "back" / "traces.jsonl")
    assert (back.turns, states_from_traces([back])) == (trace.turns, states_from_traces([trace]))


@pytest.mark.parametrize(
    "text",
    [
        f"const patch = {PATCH!r};\ntext(await tools.apply_patch(patch));",
        f"const p = {PATCH!r}.replace('1', '3');\ntext(await tools.apply_patch(p));",
    ],
)
def test_a_script_whose_patch_does_not_apply(tmp_path, text):
    failed = "Script failed\nWall time 0.1 seconds\nOutput:\n\nScript error:\napply_patch verification failed: Failed to find it"
    trace = read(tmp_path, script(text), told(failed, kind="custom_tool_call_output"))
    assert [result.status for result in trace.turns[0].results] == ["edit_not_applied"]
    assert [call.name for call in trace.turns[0].tool_calls] == ["exec" if "replace" in text else "apply_patch"]


def test_a_script_that_fails_and_one_that_tells_an_exit_code(tmp_path):
    text = 'text(await tools.exec_command({cmd: "make"}))'
    failed = "Script failed\nWall time 0.1 seconds\nOutput:\n\nScript error:\nTypeError: x"
    told_code = 'Script completed\nWall time 0.1 seconds\nOutput:\n\n{"chunk_id":"a","exit_code":2,"output":"no rule"}'
    for output in (failed, told_code):
        trace = read(tmp_path, script(text), told(output, kind="custom_tool_call_output"))
        assert [result.status for result in trace.turns[0].results] == ["command_failed"]
    assert trace.turns[0].results[0].details == {"exit_code": 2}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('// @exec: {}\nconst r = await tools.exec_command({cmd: "ls"}); text(r.output)', {"cmd": "ls"}),
        ('const cmd = "ls"; const a = {cmd}; const {output} = await tools.exec_command(a);\ntext(output);', {"cmd": "ls"}),
        ("let p = `a\nb \\` c`;\ntext(await tools.apply_patch(p));", "a\nb ` c"),
        ('text(JSON.stringify(await tools.exec_command({cmd: "ls"}))); if (1) text("tools.x()")', {"cmd": "ls"}),
        ('r = (await tools.exec_command({cmd: "// no \\ud83d\\ude00"})).output;', {"cmd": "// no \U0001f600"}),
    ],
)
def test_calls_that_are_certain(text, found):
    assert call_in(text) == ("apply_patch" if isinstance(found, str) else "exec_command", found)


def test_literals_are_read_as_javascript_reads_them():
    assert call_in('tools.x({cmd: "ls", n: 3, deep: [1, -2.5, null, true, {}],})') == (
        "x",
        {"cmd": "ls", "n": 3, "deep": [1, -2.5, None, True, {}]},
    )
    assert call_in("tools.x({'cmd': 'a \\'b\\' \\u0041\\x42\\u{43}\\n'})") == ("x", {"cmd": "a 'b' ABC\n"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "text(1)",
        "tools.x()",
        "tools.x(y)",
        "tools.x({...y})",
        "tools.x({a: 1 + 1})",
        "tools.x({a: 1}, 2)",
        "tools.x(`a ${1}`)",
        "text(`${await tools.y(1)}`); tools.x({a: 1})",
        'tools.x({a: 1}); tools.x({a: 2})',
        "if (y) tools.x({a: 1})",
        "for (const y of z) { await tools.x({a: 1}) }",
        "while (await tools.x({a: 1})) {}",
        "z.map(y => tools.x({a: 1}))",
        "const f = () => tools.x({a: 1});",
        'const p = "a" + "b"; tools.x(p)',
        'const p = "a"; p.b = 1; tools.x({p})',
        'const p = "a"; tools.x(p + 1)',
        'await tools["x"]({a: 1})',
        "tools.x({a: 1",
        "tools.x(" + "[" * 500 + "]" * 500 + ")",
        "y && tools.x({a: 1})",
    ],
)  # fmt: skip
def test_calls_that_are_not_certain(text):
    assert call_in(text) is None


@pytest.mark.parametrize("word", ["/*", "//", '"', "`", "${", "a(", "(", "tools.x(", "{a:", "\\", "const a = 1;", "aaaa", " "])
def test_a_long_script_takes_no_quadratic_time(word):
    """It ends; in the square of its length it would not."""
    call_in(word * (200_000 // len(word)))
    call_in("tools.x(" + word * (200_000 // len(word)))
