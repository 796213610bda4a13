from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.actions.calls import (
    Call,
    action_message,
    canonical_action,
    canonical_call,
    canonical_text,
    command_in,
    parse_action,
    render_action,
)

WORD = st.text(max_size=8)
VALUE = st.none() | st.booleans() | st.integers() | WORD | st.lists(WORD, max_size=2) | st.dictionaries(WORD, WORD, max_size=2)
CALL = st.builds(Call, st.text(min_size=1, max_size=8), st.dictionaries(WORD, VALUE, max_size=3))
CALLS = st.lists(CALL, min_size=1, max_size=3)


@given(CALLS)
def test_calls_survive_as_text(calls):
    assert parse_action(render_action("prose beside it", calls)) == ("", tuple(calls))


@pytest.mark.parametrize(
    "text", ["", "Done.", '{"name": "f"}', '{"name": "f", "arguments": []}', '{"name": "f", "arguments": {}}\nand prose', "[1]"]
)
def test_anything_else_is_text(text):
    assert parse_action(text) == (text, ())
    assert render_action(text, []) == text
    assert action_message(text) == {"role": "assistant", "content": text}


@pytest.mark.parametrize("levels", [64, 500, 100_000])
def test_a_line_nested_too_deeply_is_text(levels):
    """A student may end with such a line; comparing it with other actions must not end the run."""
    text = '{"name": "f", "arguments": {"x": ' + "[" * levels + "]" * levels + "}}"
    assert parse_action(text) == (text, ())
    assert canonical_action(*parse_action(text)) == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"command": "ls", "n": 1}, {"n": 1, "command": "ls"}),
        ({"command": "ls", "cwd": "src//a"}, {"command": "ls", "cwd": "./src/a"}),
        ({"command": "ls", "limit": None}, {"command": "ls"}),
        ({"command": "cat  'a b'   x"}, {"command": 'cat "a b" x'}),
        ({"command": "ls&&pwd # both"}, {"command": "ls && pwd"}),
        ({"command": "ls > x -a"}, {"command": "ls -a >x"}),
        ({"action": {"command": "./a  b", "x": None}}, {"action": {"command": "./a b"}}),
    ],
)
def test_equal_calls(one, other):
    assert canonical_call("bash", one) == canonical_call("bash", other)
    assert canonical_call("f", one) != canonical_call("f", other) or one == other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rm -f *.log", "rm -f '*.log'"),
        ("echo $HOME", "echo '$HOME'"),
        ("A=$HOME x", "A='$HOME' x"),
        ("A=1 x", "'A=1' x"),
        ("echo done '&&' rm -rf build", "echo done && rm -rf build"),
        ("echo a '>' b", "echo a > b"),
        ("cat a.py '|' sh", "cat a.py | sh"),
        ("ls # -a", "ls '#' -a"),
        ("echo 2>x", "echo 2 >x"),
        ("for f in x; do ls; done", "'for' f in x; do ls; done"),
        ("cat <<E\n  x\nE", "cat <<E\nx\nE"),
        ("echo $(ls  x)", "echo $(ls x)"),
    ],
)
def test_quotes_are_never_lost(one, other):
    assert canonical_call("bash", {"command": one}) != canonical_call("bash", {"command": other})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"path": "a.py"}, {"path": "b.py"}),
        ({"path": "a.py"}, {"path": "/a.py"}),
        ({"path": "a/../b.py"}, {"path": "b.py"}),
        ({"path": "a/"}, {"path": "a"}),
        ({"command": "ls && pwd"}, {"command": "ls; pwd"}),
        ({"command": "pytest -q tests"}, {"command": "pytest tests -q"}),
        ({"command": "echo a\necho b"}, {"command": "echo a echo b"}),
        ({"command": "echo 'a  b'"}, {"command": "echo 'a b'"}),
        ({"content": "a  b"}, {"content": "a b"}),
        ({"n": 1}, {"n": "1"}),
        ({"command": "echo 'open"}, {"command": "echo open"}),
    ],
)
def test_different_calls(one, other):
    for tool in ("f", "bash", "read_file"):
        assert canonical_call(tool, one) != canonical_call(tool, other)
    assert canonical_call("f", one) != canonical_call("g", one)


def test_of_an_unknown_tool_every_argument_counts():
    assert canonical_call("create_issue", {"assignee": None}) != canonical_call("create_issue", {})
    assert canonical_call("attach", {"path": "./a"}) != canonical_call("attach", {"path": "a"})


def test_plain_text_is_compared_without_its_dress():
    assert canonical_text("**Run** the  `tests`\nfirst.") == canonical_text("run the tests first")
    assert canonical_text("run the tests") != canonical_text("do not run the tests")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("```python\nif x:\n    a()\nb()\n```", "```python\nif x:\n    a()\n    b()\n```"),
        ("```bash\n# rm -rf build\n```", "```bash\nrm -rf build\n```"),
        ("# rm -rf build", "rm -rf build"),
        ("Write:\n\n    if x:\n        a()", "Write:\n\n    if x:\n    a()"),
        ("~~~\na  b\n~~~", "~~~\na b\n~~~"),
        ("It is 5!", "It is 5"),
    ],
)
def test_code_in_a_text_stays_as_it_is(one, other):
    assert canonical_text(one) != canonical_text(other)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("I look.\n\n```bash\nls -la\n```", ("bash", "ls -la")),
        ("```\nls\ncat a\n```\nDone.", ("", "ls\ncat a")),
        ("```bash\ncat > a.py <<'E'\nif x:\n    a()\nE\n```", ("bash", "cat > a.py <<'E'\nif x:\n    a()\nE")),
        ("ls", None),
        ("```python\nls\n```", None),
        ("```bash\nls\n```\n```bash\npwd\n```", None),
        ("```bash\nls", None),
        ("```bash\n\n```", None),
        ("Use ```ls``` or\n```bash\nls\n```", None),
        ("```bash\ncat <<E\n```x\nE\n```", None),
        ("- do\n  ```bash\n  ls\n  ```", None),
    ],
)
def test_the_command_of_a_text(text, found):
    assert command_in(text) == found
