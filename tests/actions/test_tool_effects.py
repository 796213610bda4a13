"""What calls of different agents' tools do, in one form."""

from __future__ import annotations

import pytest

from composer_replication.actions.tool_effects import EffectKind, Replacement, ToolEffect, classify_call
from composer_replication.envs.tools import TOOLSETS

ONE = Replacement("a", "b")


@pytest.mark.parametrize(
    ("name", "arguments", "effect"),
    [
        ("read_file", {"path": "./a.py", "start": 3}, ToolEffect(kind=EffectKind.READ, path="a.py", lines=(3, None))),
        (
            "Read",
            {"file_path": "/r/a.py", "offset": 5, "limit": 10},
            ToolEffect(kind=EffectKind.READ, path="/r/a.py", lines=(5, 14)),
        ),
        ("Read", {"file_path": "/r/a.py", "offset": 0}, ToolEffect(kind=EffectKind.READ, path="/r/a.py")),
        ("Read", {"file_path": "/r/a.py"}, ToolEffect(kind=EffectKind.READ, path="/r/a.py")),
        (
            "str_replace_editor",
            {"command": "view", "path": "a.py", "view_range": [2, -1]},
            ToolEffect(kind=EffectKind.READ, path="a.py", lines=(2, None)),
        ),
        (
            "edit_file",
            {"path": "a.py", "old": "a", "new": "b"},
            ToolEffect(kind=EffectKind.EDIT, path="a.py", replacements=(ONE,)),
        ),
        (
            "Edit",
            {"file_path": "a.py", "old_string": "a", "new_string": "b"},
            ToolEffect(kind=EffectKind.EDIT, path="a.py", replacements=(ONE,)),
        ),
        (
            "MultiEdit",
            {
                "file_path": "a.py",
                "edits": [{"old_string": "a", "new_string": "b"}, {"old_string": "c", "new_string": "", "replace_all": True}],
            },
            ToolEffect(kind=EffectKind.EDIT, path="a.py", replacements=(ONE, Replacement("c", "", everywhere=True))),
        ),
        (
            "str_replace_editor",
            {"command": "str_replace", "path": "a.py", "old_str": "a", "new_str": "b"},
            ToolEffect(kind=EffectKind.EDIT, path="a.py", replacements=(ONE,)),
        ),
        (
            "file_editor",
            {"command": "insert", "path": "a.py", "insert_line": 0, "new_str": "x"},
            ToolEffect(kind=EffectKind.EDIT, path="a.py", insert_after=(0, "x")),
        ),
        ("Write", {"file_path": "b//a.py", "content": "x"}, ToolEffect(kind=EffectKind.WRITE, path="b/a.py", content="x")),
        ("apply_patch", {"input": "*** Begin Patch"}, ToolEffect(kind=EffectKind.PATCH, content="*** Begin Patch")),
        ("Grep", {"pattern": "x", "path": "src/"}, ToolEffect(kind=EffectKind.SEARCH, pattern="x", path="src")),
        ("list_files", {}, ToolEffect(kind=EffectKind.LIST)),
        ("Bash", {"command": "ls -l"}, ToolEffect(kind=EffectKind.SHELL, command="ls -l")),
        (
            "shell",
            {"command": ["bash", "-lc", "a | b"], "workdir": "/r"},
            ToolEffect(kind=EffectKind.SHELL, command="a | b", cwd="/r"),
        ),
        ("shell", {"command": ["grep", "a b", "f"]}, ToolEffect(kind=EffectKind.SHELL, command="grep 'a b' f")),
        ("local_shell", {"action": {"command": ["ls"]}}, ToolEffect(kind=EffectKind.SHELL, command="ls")),
        ("finish", {"message": "done"}, ToolEffect(kind=EffectKind.SUBMIT)),
    ],
)
def test_calls_of_many_agents(name: str, arguments: dict, effect: ToolEffect) -> None:
    assert classify_call(name, arguments) == effect


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Teleport", {}),
        ("read_file", {}),
        ("read_file", {"path": 3}),
        ("list_files", {"path": 5}),
        ("edit_file", {"path": "a", "old": "a", "new": ["b"]}),
        ("read_file", {"path": "a", "start": "two"}),
        ("Edit", {"file_path": "a", "edits": 3}),
        ("Edit", {"file_path": "a", "edits": ["x"]}),
        ("str_replace_editor", {}),
        ("str_replace_editor", {"command": "undo_edit", "path": "a"}),
        ("str_replace_editor", {"command": "view", "path": "a", "view_range": [1]}),
        ("shell", {}),
        ("shell", {"command": 3}),
    ],
)
def test_what_is_not_understood_is_other(name: str, arguments: dict) -> None:
    assert classify_call(name, arguments) == ToolEffect(kind=EffectKind.OTHER)


def test_every_tool_of_ours_is_known() -> None:
    filled = {"path": "a", "old": "a", "new": "b", "content": "c", "patch": "p", "pattern": "x", "command": "ls"}
    for tool in TOOLSETS["shell"]:
        assert classify_call(tool["function"]["name"], filled).kind is not EffectKind.OTHER, tool["function"]["name"]
