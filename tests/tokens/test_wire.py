"""Messages between the form of the HTTP interface and that of chat templates."""

from __future__ import annotations

import pytest

from composer_replication.tokens import assistant_message
from composer_replication.types import ToolCall
from composer_replication.types.wire import call_to_wire, message_from_wire, message_to_wire

CALL = ToolCall(call_id="call_0_0", name="add", arguments={"a": 1, "b": ["é"]})


def test_a_turn_comes_back_as_it_was_sent() -> None:
    message = assistant_message("Let me add.", (CALL,))
    wire = message_to_wire(message)
    assert wire["tool_calls"][0]["function"]["arguments"] == '{"a": 1, "b": ["é"]}'
    assert message_from_wire(wire) == message
    assert call_to_wire(wire["tool_calls"][0]) == wire["tool_calls"][0], "text stays as it is"


@pytest.mark.parametrize(
    ("wire", "read"),
    [
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        ({"role": "developer", "content": "Be brief."}, {"role": "system", "content": "Be brief."}),
        ({"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}, {"role": "user", "content": "a\nb"}),
        (
            {"role": "tool", "content": "3", "tool_call_id": "call_0_0", "name": "add", "cached": True},
            {"role": "tool", "content": "3", "tool_call_id": "call_0_0", "name": "add"},
        ),
    ],
)  # fmt: skip
def test_what_programs_send_is_read_as_templates_have_it(wire, read) -> None:
    assert message_from_wire(wire) == read


@pytest.mark.parametrize(
    "wire",
    [
        {"content": "no role"},
        {"role": "user", "content": ["plain"]},
        {"role": "user", "content": 7},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        {"role": "assistant", "tool_calls": ["f"]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}]},
    ],
    ids=str,
)
def test_what_is_no_message_raises(wire) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        message_from_wire(wire)
