"""Chat messages as the HTTP interface of OpenAI has them: a call's arguments are JSON text, and content may be null or parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from composer_replication.types.messages import Message


def message_from_wire(wire: Mapping[str, Any]) -> Message:
    """Convert a message of the HTTP interface to the form that chat templates read: arguments as a dict, content as one text.

    Raises:
        KeyError, TypeError, ValueError: it is no such message, or shows something that is not text.
    """
    role = "system" if wire["role"] == "developer" else wire["role"]  # the name that newer models have for it
    message = Message(role=role, content=_text(wire.get("content")))
    if wire.get("tool_calls"):
        message["tool_calls"] = [_call_from_wire(call) for call in wire["tool_calls"]]
    if wire.get("tool_call_id"):
        message["tool_call_id"] = wire["tool_call_id"]
    if wire.get("name"):
        message["name"] = wire["name"]
    return message


def message_to_wire(message: Message) -> dict[str, Any]:
    """Convert a message to the form of the HTTP interface."""
    wire: dict[str, Any] = {**message}
    if "tool_calls" in message:
        wire["tool_calls"] = [call_to_wire(call) for call in message["tool_calls"]]
    return wire


def call_to_wire(call: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an entry of `Message["tool_calls"]` to the form of the HTTP interface."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": name, "arguments": text}}


def _call_from_wire(call: Mapping[str, Any]) -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    parsed = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
    return {"id": call["id"], "type": "function", "function": {"name": name, "arguments": parsed}}


def _text(content: Any) -> str:
    if isinstance(content, str | None):
        return content or ""
    if any(not isinstance(part, dict) or part.get("type") != "text" for part in content):
        raise ValueError("a message shows something that is not text")
    return "\n".join(part["text"] for part in content)
