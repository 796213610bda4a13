from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.actions import (
    Call,
    action_message,
    canonical_action,
    canonical_call,
    canonical_text,
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
        ({"path": "a.py", "n": 1}, {"n": 1, "path": "./a.py"}),
        ({"path": "a/../b.py"}, {"path": " b.py "}),
        ({"path": "a.py", "limit": None}, {"path": "a.py"}),
        ({"command": "cat  'a b'   x"}, {"command": 'cat "a b" x'}),
        ({"command": "ls&&pwd"}, {"command": "ls && pwd"}),
        ({"edit": {"path": "./a", "x": None}}, {"edit": {"path": "a"}}),
    ],
)
def test_equal_calls(one, other):
    assert canonical_call("f", one) == canonical_call("f", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"path": "a.py"}, {"path": "b.py"}),
        ({"path": "a.py"}, {"path": "/a.py"}),
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
    assert canonical_call("f", one) != canonical_call("f", other)
    assert canonical_call("f", one) != canonical_call("g", one)


def test_plain_text_is_compared_without_its_dress():
    assert canonical_text("**Run** the  `tests`\nfirst.") == canonical_text("run the tests first")
    assert canonical_text("run the tests") != canonical_text("do not run the tests")
