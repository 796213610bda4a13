"""The fixed sentence for each kind of finding, filled from the tool schemas and the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.hints.context import HintContext
from composer_replication.types import Finding, ToolSchema
from composer_replication.types.transcript import Transcript

_SENTENCES = {
    "path_not_editable": "{path} may not be changed. Change the project's source files.",
    "repeated_action": "this {tool} call was just made and nothing has changed since. Do something else.",
    "timeout": "the code ran out of time. Look for a loop or a recursion that never ends.",
    "out_of_memory": "the code ran out of memory. Look for something that grows without end.",
    "style": "{message}",
    "malformed_markup": "the tool call was written as text and nothing was called. Call the tool in the format you were given.",
    "no_tool_call": "the turn called no tool, and nothing was done. Call the tool that does the next step.",
    "cut_off": "the turn ended at its token limit before a call was complete. Write less before it, or do it in smaller steps.",
    "permission_denied": "this {tool} call is not permitted. Find a way that needs no such right.",
    "oscillation": "the same two calls were just made before, with the same results. Do something else.",
    "long_turn": "the answer is far too long. Say only what is needed, in a few sentences.",
    "long_observation": "the {tool} call showed {characters:,} characters. Ask for the part that you need.",
    "syntax_error": "after this edit {path} is not valid Python: {message} in line {line}, `{source}`.",
    "tests_touched": "{path} is a test that judges the work. Change the code that it tests.",
    "configuration_touched": "{path} decides how the tests are run. Leave it as it is and change the code.",
    "hidden_files": "the task is to be done without looking into git's history or caches. Work from the source files.",
}
"""Sentences that name only the tool, the path and facts of the evidence; `_sentence` has those that depend on them."""
_LONGEST_PATH = 120
"""Characters of a path that a hint quotes."""


@dataclass(frozen=True, slots=True)
class TemplateHint:
    """A hint for most kinds of finding: one fixed sentence per kind, filled from the tool schemas and the evidence."""

    source: str = "template"

    def generate(self, finding: Finding, trajectory: Transcript, context: HintContext, /) -> str | None:
        return template_hint(finding.kind, finding.evidence, context.tools or trajectory.tools)


def template_hint(kind: str, evidence: Mapping[str, Any], tools: Sequence[ToolSchema]) -> str | None:
    """Fill the fixed sentence for a kind of finding; None when there is none.

    Args:
        evidence: of the finding: `tool`, `arguments`, `error`, `occurrences` as far as the kind has them.
        tools: what the agent may call.
    """
    sentence = _sentence(kind, evidence, {t["function"]["name"]: t["function"] for t in tools})
    return None if sentence is None else f"Hint: {sentence}"


def _sentence(kind: str, evidence: Mapping[str, Any], tools: Mapping[str, Mapping[str, Any]]) -> str | None:
    tool = str(evidence.get("tool") or "")
    path = _shortened(str(_path(evidence))) or "the file"
    match kind:
        case "unknown_tool":
            unknown = f"there is no tool {tool}. " if tool else ""
            return f"{unknown}Available tools are: {', '.join(tools)}." if tools else f"{unknown}Call one that you have."
        case "malformed_call":
            reason = f" ({evidence['error']})" if evidence.get("error") else ""
            return f"the tool call could not be read{reason}. Write one JSON object with name and arguments."
        case "invalid_arguments":
            return _arguments_sentence(tool, tools)
        case "edit_not_applied":
            return _edit_sentence(path, evidence.get("occurrences"), evidence.get("reason"))
        case "path_not_found":
            return f"there is no {path}. List the files first." if path != "the file" else None
        case "timeout" | "out_of_memory" if tool != "run_tests":
            return f"the {tool} call took too much. Ask for less."
        case "reread_unchanged":
            return f"this was shown in turn {int(evidence['first_read']) + 1} and nothing has changed since. Use what is there."
        case "premature_submit":
            changed = ", ".join(evidence.get("paths", ())) or "the code"
            return f"nothing was run after the last change of {changed}. Run the tests before you finish."
        case "test_regression":
            return f"this change breaks tests that passed before: {', '.join(evidence['tests'][:3])}."
        case "lint":
            return f"in {path}, {'; '.join(evidence['complaints'][:3])}."
    sentence = _SENTENCES.get(kind)
    return None if sentence is None else sentence.format_map({**evidence, "tool": tool, "path": path})


def _shortened(path: str) -> str:
    """Return a path as it is, or the end of one that nobody would read."""
    return path if len(path) <= _LONGEST_PATH else f"...{path[-_LONGEST_PATH:]}"


def _path(evidence: Mapping[str, Any]) -> Any:
    arguments = evidence.get("arguments", {})
    return next((arguments[name] for name in ("path", "file_path") if arguments.get(name)), evidence.get("path") or "")


def _arguments_sentence(tool: str, tools: Mapping[str, Mapping[str, Any]]) -> str | None:
    if tool not in tools:
        return None
    schema = tools[tool].get("parameters", {})
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not properties:
        return f"{tool} takes no arguments."
    named = ", ".join(f"{name} ({properties[name]['type']})" if "type" in properties.get(name, {}) else name for name in required)
    optional = ", ".join(name for name in properties if name not in required)
    needs = f"{tool} requires the arguments {named}" if named else f"{tool} requires no arguments"
    return f"{needs}{f'; optional: {optional}' if optional else ''}."


def _edit_sentence(path: str, occurrences: Any, reason: Any) -> str | None:
    if reason is not None:
        return f"{reason}, so nothing in {path} was changed."
    if occurrences is None:
        return None
    if isinstance(occurrences, int) and occurrences > 1:
        return f"the old text occurs {occurrences} times in {path}. Add the lines around it until it occurs once."
    return f"the old text occurs 0 times in {path}. Read the file first and copy the old text exactly."
