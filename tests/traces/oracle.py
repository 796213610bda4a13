"""What a scripted model received, in one plain form: `(role, text, calls, call id)` per message, whatever the dialect."""

from __future__ import annotations

import json
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"


def received(file: Path, *, drop=lambda role, text: False, users: bool = False, skip: int = 0) -> list[tuple[list, dict]]:
    """Messages and answer of every scripted request, but for the first `skip` messages and texts of which `drop` is true.

    `users`: neighbouring messages of users are one.
    """
    kept = json.loads(file.read_text("utf-8"))
    found = []
    for request in kept["requests"]:
        if request["main"]:
            flat = [part for i in request["items"][skip:] for part in flatten(kept["items"][i], drop)]
            found.append((joined(flat, users), request["answer"]))
    return found


def shown(context, *, users: bool = False) -> list:
    """The context of a turn in the same form."""
    flat = [part for message in context for part in flatten(message, lambda role, text: False)]
    return joined(flat, users)


def flatten(item, drop):
    kind, role, content = item.get("type"), item.get("role"), item.get("content")
    if kind in ("function_call", "custom_tool_call"):
        arguments = {"input": item["input"]} if "input" in item else item["arguments"]
        yield "assistant", "", (call(item["name"], arguments),), ""
    elif kind in ("function_call_output", "custom_tool_call_output"):
        yield "tool", text(item["output"]), (), item["call_id"]
    elif kind == "reasoning":
        return
    elif role == "tool":
        yield "tool", text(content), (), item["tool_call_id"]
    elif isinstance(content, list) and any(b.get("type") in ("tool_use", "tool_result") for b in content):
        for block in content:
            if block["type"] == "tool_use":
                yield "assistant", "", (call(block["name"], block["input"]),), ""
            elif block["type"] == "tool_result":
                yield "tool", text(block.get("content")), (), block["tool_use_id"]
            elif block["type"] == "text" and not drop(role, block["text"]):
                yield role, block["text"], (), ""
    elif isinstance(content, list) and not item.get("tool_calls"):
        for block in content:
            if block.get("type") != "thinking" and not drop(role, block["text"]):
                yield {"developer": "system"}.get(role, role), block["text"], (), ""
    elif not drop(role, text(content)):
        calls = tuple(call(c["function"]["name"], c["function"]["arguments"]) for c in item.get("tool_calls") or ())
        yield {"developer": "system"}.get(role, role), text(content), calls, ""


def call(name, arguments):
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        parsed = arguments
    return name, json.dumps(parsed, sort_keys=True)


def text(content):
    if isinstance(content, list):
        return "\n".join(part.get("text", f"[{part.get('type')}]") for part in content)
    return content or ""


def joined(parts, users):
    """Neighbours of the model are one message, parts of a system message too; users' only where a dialect joins them."""
    whole = []
    for role, said, calls, call_id in parts:
        if whole and whole[-1][0] == role and (role in ("assistant", "system") or (users and role == "user")):
            _, before, earlier, _ = whole[-1]
            before = before.rstrip("\n") if role == "user" else before  # blocks end in line ends of the program's
            whole[-1] = (role, "\n".join(filter(None, (before, said))), earlier + calls, "")
        else:
            whole.append((role, said, calls, call_id))
    return whole
