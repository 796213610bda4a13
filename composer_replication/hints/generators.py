"""What to tell the self-teacher about an error turn: from the project's documentation, the tool schemas or the error text.

Every source is something the agent's environment holds. The deleted code is not among them, and `leaks_gold` checks that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from composer_replication.hints.glossary import Definition, definitions, mentions
from composer_replication.types import Finding, ToolSchema, Trajectory

__all__ = [
    "BUILTIN_GENERATORS",
    "DocumentationHint",
    "EnvironmentErrorHint",
    "HintContext",
    "HintGenerator",
    "TemplateHint",
    "template_hint",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class HintContext:
    """What hints about one task may be made of."""

    tools: tuple[ToolSchema, ...] = ()
    documentation: Mapping[str, str] = field(default_factory=dict)
    """Text of the project's prose files by POSIX path; code files are not read."""
    instruction: str = ""


class HintGenerator(Protocol):
    """Writes the hint for one finding, or passes."""

    @property
    def source(self) -> str:
        """Recorded in `Hint.source`."""
        ...

    def generate(self, finding: Finding, trajectory: Trajectory, context: HintContext, /) -> str | None: ...


@dataclass(frozen=True, slots=True)
class DocumentationHint:
    """For failing tests: what the documentation says about the project's own terms in the function being written.

    The terms are those mentioned in the instruction or in what the agent had been shown of that function (its signature,
    docstring and comments); when no function can be told, in everything it had been shown except the documentation itself.
    """

    source: str = "documentation"
    max_terms: int = 2

    def generate(self, finding: Finding, trajectory: Trajectory, context: HintContext, /) -> str | None:
        if finding.kind != "tests_failed":
            return None
        known = {d.term: d for d in definitions(context.documentation)}
        instruction = context.instruction or "\n".join(m["content"] for m in trajectory.messages if m["role"] == "user")
        shown = list(_shown(trajectory, finding.turn, context.documentation))
        names = set(re.findall(r"[A-Za-z_]\w*", instruction)) | _edited_names(trajectory, finding.turn)
        blocks = [block for text in shown for name, block in _functions(text) if name in names]
        found = _mentioned("\n".join(blocks), known) or _mentioned(instruction, known) or _mentioned("\n".join(shown), known)
        if not found:
            return None
        return "Hint: " + " ".join(f"{d.term} means {d.text}." for d in found[: self.max_terms])


_SEARCH_PREFIX = re.compile(r"^\S+?[:-]\d+[:-] ")
"""`path:line: ` or `path-line- `, before a line found by a search."""


def _mentioned(text: str, known: Mapping[str, Definition]) -> list[Definition]:
    positions = mentions(text, known)
    return [known[term] for term in sorted(positions, key=lambda term: positions[term])]


def _shown(trajectory: Trajectory, turn: int, documentation: Mapping[str, str]) -> Iterator[str]:
    """Observations from before `turn` without the lines that are the documentation's own, read or found by a search."""
    documented = {line.strip() for text in documentation.values() for line in text.splitlines()}
    for earlier in trajectory.turns[:turn]:
        for result in earlier.results:
            lines = [_SEARCH_PREFIX.sub("", line) for line in result.content.splitlines()]
            yield "\n".join(line for line in lines if line.strip() not in documented)


def _edited_names(trajectory: Trajectory, turn: int) -> set[str]:
    """Names of the functions defined in the text the turn's calls carried."""
    texts = [v for call in trajectory.turns[turn].tool_calls for v in call.arguments.values() if isinstance(v, str)]
    return {name for text in texts for name in re.findall(r"\bdef\s+(\w+)", text)}


def _functions(text: str) -> Iterator[tuple[str, str]]:
    """`(name, source)` of every function in a listing, whose lines may be numbered; a source ends where the next one starts."""
    starts = list(re.finditer(r"^[\s\d:|]*(?:async\s+)?(?:def|class)\s+(\w+)", text, re.MULTILINE))
    for index, start in enumerate(starts):
        end = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        yield start[1], text[start.start() : end]


@dataclass(frozen=True, slots=True)
class TemplateHint:
    """For calls the environment refused: one fixed sentence per kind, filled from the tool schemas and the evidence."""

    source: str = "template"

    def generate(self, finding: Finding, trajectory: Trajectory, context: HintContext, /) -> str | None:
        return template_hint(finding.kind, finding.evidence, context.tools or trajectory.tools)


def template_hint(kind: str, evidence: Mapping[str, Any], tools: Sequence[ToolSchema]) -> str | None:
    """The fixed sentence for a kind of finding, None when there is none.

    Args:
        evidence: of the finding: `tool`, `arguments`, `error`, `occurrences` as far as the kind has them.
        tools: what the agent may call.
    """
    sentence = _sentence(kind, evidence, {t["function"]["name"]: t["function"] for t in tools})
    return None if sentence is None else f"Hint: {sentence}"


def _sentence(kind: str, evidence: Mapping[str, Any], tools: Mapping[str, Mapping[str, Any]]) -> str | None:
    tool = str(evidence.get("tool") or "")
    path = str(evidence.get("arguments", {}).get("path", "")) or "the file"
    match kind:
        case "unknown_tool":
            unknown = f"there is no tool {tool}. " if tool else ""
            return f"{unknown}Available tools are: {', '.join(tools)}."
        case "malformed_call":
            reason = f" ({evidence['error']})" if evidence.get("error") else ""
            return f"the tool call could not be read{reason}. Write one JSON object with name and arguments."
        case "invalid_arguments":
            return _arguments_sentence(tool, tools)
        case "edit_not_applied":
            return _edit_sentence(path, evidence.get("occurrences"))
        case "path_not_found":
            return f"there is no {path}. List the files first."
        case "path_not_editable":
            return f"{path} may not be changed. Change the project's source files."
        case "repeated_action":
            return f"this {tool} call was just made and nothing has changed since. Do something else."
        case "timeout" | "out_of_memory" if tool != "run_tests":
            return f"the {tool} call took too much. Ask for less."
        case "timeout":
            return "the code ran out of time. Look for a loop or a recursion that never ends."
        case "out_of_memory":
            return "the code ran out of memory. Look for something that grows without end."
    return None


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


def _edit_sentence(path: str, occurrences: Any) -> str:
    if isinstance(occurrences, int) and occurrences > 1:
        return f"the old text occurs {occurrences} times in {path}. Add the lines around it until it occurs once."
    return f"the old text occurs 0 times in {path}. Read the file first and copy the old text exactly."


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_ERROR_LINE = re.compile(r"^E\s|\b\w*(?:Error|Exception|Timeout|Interrupt)\b|^FAILED\b|^assert\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EnvironmentErrorHint:
    """For any finding with an observation: its last lines that name an error, or its last lines when none does."""

    source: str = "environment"
    max_lines: int = 3
    max_chars: int = 300

    def generate(self, finding: Finding, _trajectory: Trajectory, _context: HintContext, /) -> str | None:
        text = _ANSI.sub("", str(finding.evidence.get("observation", "")))
        lines = [line.strip() for line in text.splitlines() if line.strip().strip("=-_ ")]
        kept = ([line for line in lines if _ERROR_LINE.search(line)] or lines)[-self.max_lines :]
        if not kept:
            return None
        trimmed = "\n".join(kept)[-self.max_chars :]
        return f"Hint: the result was:\n{trimmed}"


BUILTIN_GENERATORS: tuple[HintGenerator, ...] = (DocumentationHint(), TemplateHint(), EnvironmentErrorHint())
"""Cheapest and most informative first; the first that has something to say is used."""
