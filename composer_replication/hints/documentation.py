"""Hints from the project's own documentation about the terms in the function that fails its tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from composer_replication.hints.context import HintContext
from composer_replication.hints.glossary import definitions, mentions
from composer_replication.types import Finding
from composer_replication.types.transcript import Transcript

_MOST_TERMS = 2


@dataclass(frozen=True, slots=True)
class DocumentationHint:
    """A hint for failing tests: what the documentation says about the project's own terms in the function being written.

    The terms are those mentioned in the instruction or in what the agent had been shown of that function (its signature,
    docstring and comments); when no function can be told, in everything it had been shown except the documentation itself.
    """

    source: str = "documentation"

    def generate(self, finding: Finding, trajectory: Transcript, context: HintContext, /) -> str | None:
        if finding.kind != "tests_failed":
            return None
        known = definitions(context.documentation)
        instruction = context.instruction or "\n".join(m["content"] for m in trajectory.messages if m["role"] == "user")
        shown = list(_shown(trajectory, finding.turn, context.documentation))
        names = set(re.findall(r"[A-Za-z_]\w*", instruction)) | _edited_names(trajectory, finding.turn)
        blocks = [block for text in shown for name, block in _functions(text) if name in names]
        found = mentions("\n".join(blocks), known) or mentions(instruction, known) or mentions("\n".join(shown), known)
        if not found:
            return None
        return "Hint: " + " ".join(f"{term} means {known[term]}." for term in found[:_MOST_TERMS])


_SEARCH_PREFIX = re.compile(r"^\S+?[:-]\d+[:-] ")
"""`path:line: ` or `path-line- `, before a line found by a search."""


def _shown(trajectory: Transcript, turn: int, documentation: Mapping[str, str]) -> Iterator[str]:
    """Yield observations from before `turn` without the lines that are the documentation's own, read or found by a search."""
    documented = {line.strip() for text in documentation.values() for line in text.splitlines()}
    for earlier in trajectory.turns[:turn]:
        for result in earlier.results:
            lines = [_SEARCH_PREFIX.sub("", line) for line in result.content.splitlines()]
            yield "\n".join(line for line in lines if line.strip() not in documented)


def _edited_names(trajectory: Transcript, turn: int) -> set[str]:
    """Return names of the functions defined in the text the turn's calls carried."""
    texts = [v for call in trajectory.turns[turn].tool_calls for v in call.arguments.values() if isinstance(v, str)]
    return {name for text in texts for name in re.findall(r"\bdef\s+(\w+)", text)}


def _functions(text: str) -> Iterator[tuple[str, str]]:
    """Yield `(name, source)` of every function in a listing, whose lines may be numbered; a source ends where the next one
    starts."""
    starts = list(re.finditer(r"^[\s\d:|]*(?:async\s+)?(?:def|class)\s+(\w+)", text, re.MULTILINE))
    for index, start in enumerate(starts):
        end = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        yield start[1], text[start.start() : end]
