from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.actions.calls import Call, canonical_action, parse_action, render_action
from composer_replication.tokens import assistant_message, parse_tool_calls
from composer_replication.types import to_json


def test_several_calls_and_the_text_around_them():
    text = 'First.\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n<tool_call>{"name": "b"}</tool_call> Then.'
    content, calls = parse_tool_calls(text, turn=3)
    assert content == "First.\n\n Then."
    assert [(c.call_id, c.name, dict(c.arguments), c.error) for c in calls] == [
        ("call_3_0", "a", {"x": 1}, None),
        ("call_3_1", "b", {}, None),
    ]


def test_arguments_given_as_json_text_are_read():
    _, (call,) = parse_tool_calls('<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', turn=0)
    assert call.arguments == {"x": 1}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('<tool_call>{"name": "a", "arguments": {}', "</tool_call> is missing"),
        ("<tool_call>{nope}</tool_call>", "bad JSON"),
        ("<tool_call></tool_call>", "bad JSON"),
        ("<tool_call>[1]</tool_call>", "not a JSON object"),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name" is missing'),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', '"name" is missing'),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', '"arguments" is not an object'),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "NaN is not a number"),
        ('<tool_call>{"name": "a", "arguments": {"x": "\\ud800"}}</tool_call>', "half a surrogate pair"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "bad JSON"),
        ('<tool_call>{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>", ""),
    ],
)
def test_what_cannot_be_understood_says_why(body, why):
    content, (call,) = parse_tool_calls(f"before {body}", turn=0)
    assert content == "before"
    assert (call.name, dict(call.arguments)) == ("", {})
    assert call.error is not None
    assert why in call.error


def nested(kind, levels):
    """JSON arguments that nest `levels` deep with the object they are in."""
    inner = "[" * (levels - 1) + "]" * (levels - 1) if kind == "lists" else '{"k": ' * (levels - 1) + "0" + "}" * (levels - 1)
    return f'{{"x": {inner}}}'


@pytest.mark.parametrize("kind", ["lists", "objects"])
@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("levels", [65, 500, 100_000])
def test_deep_nesting_is_malformed(kind, as_text, levels):
    """JSON alone has no limit, but what later writes, compares and renders the call recurses."""
    arguments = nested(kind, levels)
    body = f'{{"name": "a", "arguments": {json.dumps(arguments) if as_text else arguments}}}'
    _, (call,) = parse_tool_calls(f"<tool_call>{body}</tool_call>", turn=0)
    assert (call.name, dict(call.arguments), call.error) == ("", {}, "bad JSON: nested too deeply")


@pytest.mark.parametrize("kind", ["lists", "objects"])
@pytest.mark.parametrize("as_text", [False, True])
def test_what_is_not_too_deep_can_be_carried_on(kind, as_text):
    arguments = nested(kind, 64)
    body = f'{{"name": "a", "arguments": {json.dumps(arguments) if as_text else arguments}}}'
    _, (call,) = parse_tool_calls(f"<tool_call>{body}</tool_call>", turn=0)
    assert call.error is None
    assert json.loads(json.dumps(to_json(call)))["arguments"] == call.arguments
    same = Call(call.name, call.arguments)
    assert parse_action(render_action("", [same])) == ("", (same,))
    assert canonical_action("", [same])


def test_an_unclosed_call_does_not_swallow_the_next():
    _, calls = parse_tool_calls('<tool_call>{"name": "a"}<tool_call>{"name": "b"}</tool_call>', turn=0)
    assert [(c.name, c.error) for c in calls] == [("", "</tool_call> is missing"), ("b", None)]


def test_text_without_calls():
    assert parse_tool_calls(" done </tool_call>", turn=0) == ("done </tool_call>", ())


@given(
    st.lists(
        st.sampled_from(["<tool_call>", "</tool_call>", '{"name": "a"', "}", "{", "[", '"', "\\u", "x", "\ufffd", "\x00", "1"]),
        max_size=20,
    )
)
def test_no_text_breaks_the_parser(parts):
    text = "".join(parts)
    content, calls = parse_tool_calls(text, turn=0)
    assert len(calls) == text.count("<tool_call>")
    assert "<tool_call>" not in content
    for call in calls:
        assert (call.error is None) == bool(call.name)


def test_the_openai_form_keeps_arguments_as_mappings():
    content, calls = parse_tool_calls(
        'x<tool_call>{"name": "a", "arguments": {"p": "q"}}</tool_call><tool_call>{</tool_call>', turn=1
    )
    message = assistant_message(content, calls)
    assert message == {
        "role": "assistant",
        "content": "x",
        "tool_calls": [{"id": "call_1_0", "type": "function", "function": {"name": "a", "arguments": {"p": "q"}}}],
    }
    json.dumps(message)
    assert "tool_calls" not in assistant_message("x", ())
