from __future__ import annotations

import json

import pytest

from composer_replication.actions.agreement import files_seen

TEXT = "x = 1\ny = 2\n"


def said(*exchanges):
    messages = [{"role": "user", "content": "go"}]
    for i, (name, arguments, answer) in enumerate(exchanges):
        function = {"name": name, "arguments": arguments}
        messages.append({"role": "assistant", "content": "", "tool_calls": [{"id": f"c{i}", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": f"c{i}", "content": answer})
    return messages


READ = ("read_file", {"path": "a.py"}, TEXT)


@pytest.mark.parametrize(
    ("exchanges", "seen"),
    [
        ([READ], {"a.py": TEXT}),
        ([("read_file", json.dumps({"path": "./a.py"}), TEXT)], {"a.py": TEXT}),
        ([("read_file", {"path": "a.py", "end": 2}, TEXT)], {}),
        ([("read_file", {"path": "a.py"}, "no file a.py")], {}),
        ([("read_file", {"path": "a.py"}, "x\n... 12 more lines")], {}),
        ([("Read", {"file_path": "/r/a.py"}, "     1→x = 1\n     2→y = 2\n")], {"/r/a.py": "x = 1\ny = 2"}),
        ([("Read", {"file_path": "/r/a.py"}, "     2→x = 1\n")], {}),
        ([("Read", {"file_path": "/r/a.py"}, "File does not exist.")], {}),
        ([("view", {"path": "a.py"}, TEXT)], {}),
        ([READ, ("edit_file", {"path": "a.py", "old": "x", "new": "z"}, "edited a.py")], {}),
        ([READ, ("edit_file", {"path": "b.py", "old": "x", "new": "z"}, "edited b.py")], {"a.py": TEXT}),
        ([READ, ("write_file", {"path": "a.py", "content": "new"}, "wrote a.py")], {"a.py": "new"}),
        ([READ, ("write_file", {"path": "a.py", "content": "new"}, "a.py is not editable")], {}),
        ([READ, ("bash", {"command": "make"}, "")], {}),
        ([READ, ("bash", {"command": "pytest -q"}, "")], {}),
        ([READ, ("bash", {"command": "grep -n x a.py"}, "")], {"a.py": TEXT}),
        ([READ, ("bash", {"command": "cat a.py > b.py"}, "")], {}),
        ([READ, ("apply_patch", {"patch": "..."}, "")], {}),
        ([READ, ("unheard_of", {}, "")], {}),
        ([READ, ("search", {"pattern": "x"}, "")], {"a.py": TEXT}),
        ([READ, ("bash", "{broken", "")], {}),
        ([("read_file", {"path": "/repo/a.py"}, TEXT), ("edit_file", {"path": "a.py", "old": "x", "new": "z"}, "")], {}),
        ([READ, ("edit_file", {"path": "/repo/a.py", "old": "x", "new": "z"}, "")], {}),
        ([READ, ("edit_file", {"path": "src/../a.py", "old": "x", "new": "z"}, "")], {}),
        ([READ, ("edit_file", {"path": "~/repo/a.py", "old": "x", "new": "z"}, "")], {}),
        ([READ, ("edit_file", {"path": "/repo/b.py", "old": "x", "new": "z"}, "")], {"a.py": TEXT}),
        (
            [("read_file", {"path": "/repo/a.py"}, TEXT), ("write_file", {"path": "a.py", "content": "new"}, "wrote a.py")],
            {"a.py": "new"},
        ),
    ],
)
def test_what_is_known_of_the_files(exchanges, seen):
    assert files_seen(said(*exchanges)) == seen


def test_a_call_without_an_answer_shows_nothing():
    assert files_seen(said(READ)[:-1]) == {}
    assert files_seen([]) == {}


def renamed(messages, name="read_file"):
    """The same conversation with one id for every call, as older logs have it."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["id"] = name
        if "tool_call_id" in message:
            message["tool_call_id"] = name
    return messages


def test_a_call_is_answered_in_its_own_turn():
    other = ("read_file", {"path": "b.py"}, "z = 3\n")
    assert files_seen(renamed(said(READ, other))) == {"a.py": TEXT, "b.py": "z = 3\n"}
    assert files_seen(renamed(said(READ, other)[:-1])) == {"a.py": TEXT}


def test_two_calls_of_one_turn_with_one_id_show_nothing():
    one, two = said(READ), said(("read_file", {"path": "b.py"}, "z = 3\n"))
    together = {**one[1], "tool_calls": one[1]["tool_calls"] + two[1]["tool_calls"]}
    assert files_seen([one[0], together, one[2], two[2]]) == {}
    assert files_seen([one[0], together, one[2]]) == {}


def test_after_a_call_of_another_form_nothing_is_known():
    command = {"role": "assistant", "content": "```bash\nmake\n```"}
    assert files_seen([*said(READ), command]) == {}
    assert files_seen([*said(READ), {"role": "assistant", "content": None, "function_call": {"name": "make"}}]) == {}
    assert files_seen([*said(READ), {"role": "assistant", "content": "Done."}]) == {"a.py": TEXT}
