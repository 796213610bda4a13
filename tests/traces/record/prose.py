"""Recorded files without the prose of the programs that wrote them: prompts, descriptions of tools, templates are their makers'.

usage: python tests/traces/record/prose.py FOLDER...

Every long line of a long text becomes a stand-in, the same one wherever the line stands in the folder, so that a log still agrees
with the requests beside it. What commands and tools answered stays.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LONG_TEXT, LONG_LINE = 600, 40
"""Characters."""
ANSWERS = frozenset({"observation", "output", "toolUseResult", "tool_result", "tool"})


def prose(value: Any) -> Iterator[str]:
    """The long lines of long texts in JSON data that are no answer of a tool."""
    if isinstance(value, dict):
        if ANSWERS.isdisjoint({str(value.get("type")), str(value.get("role"))}):
            for key, inner in value.items():
                if key not in ANSWERS:
                    yield from prose(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from prose(inner)
    elif isinstance(value, str) and len(value) >= LONG_TEXT:
        yield from (line for line in value.split("\n") if len(line) >= LONG_LINE)


def answers(value: Any, within: bool = False) -> Iterator[str]:
    """Every line of what tools answered."""
    if isinstance(value, dict):
        within = within or not ANSWERS.isdisjoint({str(value.get("type")), str(value.get("role"))})
        for key, inner in value.items():
            yield from answers(inner, within or key in ANSWERS)
    elif isinstance(value, list):
        for inner in value:
            yield from answers(inner, within)
    elif isinstance(value, str) and within:
        yield from value.split("\n")


def documents(file: Path) -> list[Any]:
    text = file.read_text("utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()] if file.suffix == ".jsonl" else [json.loads(text)]


def main(folders: list[str]) -> None:
    for folder in map(Path, folders):
        files = [file for file in sorted(folder.rglob("*")) if file.suffix in (".json", ".jsonl")]
        told = [document for file in files for document in documents(file)]
        kept = {line for document in told for line in answers(document)}
        lines = sorted({line for document in told for line in prose(document)} - kept, key=len, reverse=True)
        for file in files:
            text = file.read_text("utf-8")
            for line in lines:
                stand_in = f"[a line of the program's prose, {hashlib.sha256(line.encode()).hexdigest()[:8]}]"
                for written in {json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1]}:
                    text = text.replace(written, stand_in)
            file.write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
