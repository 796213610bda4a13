"""The vocabulary of the embedded projects: eight operations, the ordinary words for them, and eight words only the house uses.

The tiny policy learns in its warm start what "the difference" means and how to follow a hint. What "the tret" means it can only
learn from the projects' handbook (as a hint), from teachers, or from trial and error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

PROJECTS = ("harbour", "orchard", "foundry")

OPERATIONS = {
    "sum": "add",
    "difference": "sub",
    "product": "mul",
    "quotient": "div",
    "remainder": "mod",
    "distance": "gap",
    "maximum": "top",
    "minimum": "low",
}
"""Ordinary word -> operation of a project's `ops.py`."""

WORDS = tuple(OPERATIONS)

_RULE = re.compile(r"def (\w+)\((\w+): int, (\w+): int\) -> int:\n    \"\"\"The (\w+) of")
_ENTRY = re.compile(r"^- (\w+): the (\w+)\.$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Module:
    """One rule module of a project."""

    path: str
    first: str
    second: str
    lines: tuple[int, ...]
    """Line numbers of its `def` statements."""


def project_path(name: str) -> Path:
    """Return the folder of an embedded project."""
    return Path(str(resources.files("composer_replication.quickstart"))) / "projects" / name


GLOSSARY: dict[str, str] = dict(_ENTRY.findall((project_path(PROJECTS[0]) / "docs" / "handbook.md").read_text()))
"""House term -> ordinary word, as the handbook has it."""

HOUSE_TERMS = tuple(sorted(GLOSSARY))


@cache
def modules() -> tuple[Module, ...]:
    """Return the rule modules of all projects."""
    found = []
    for project in PROJECTS:
        for file in sorted((project_path(project) / project).glob("*.py")):
            text = file.read_text()
            rules = [rule for rule in _RULE.finditer(text) if rule[4] in GLOSSARY]
            if rules:
                lines = tuple(text.count("\n", 0, rule.start()) + 1 for rule in rules)
                found.append(Module(f"{project}/{file.name}", rules[0][2], rules[0][3], lines))
    return tuple(found)
