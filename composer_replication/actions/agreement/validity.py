"""Check whether a call can be carried out at all, given the tools on offer."""

from __future__ import annotations

from collections.abc import Sequence

from jsonschema import Draft202012Validator

from composer_replication.actions.calls import Call
from composer_replication.types import ToolSchema


def problem_of(call: Call, tools: Sequence[ToolSchema]) -> str:
    """Return `unknown tool`, `invalid arguments`, or nothing. Without `tools` every call is valid."""
    if not tools:
        return ""
    schemas = {t["function"]["name"]: t["function"].get("parameters", {}) for t in tools}
    if call.name not in schemas:
        return "unknown tool"
    valid = Draft202012Validator(schemas[call.name]).is_valid(dict(call.arguments))
    return "" if valid else "invalid arguments"
