"""The instruction for the agent: a sentence, a specification, an issue, or a hint that leaves most to find out."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from composer_replication.languages.functions import Function
from composer_replication.tasks.feature import Feature
from composer_replication.tasks.issue import as_issue
from composer_replication.types import InstructionStyle

_MOST_TESTS = 5
_MOST_PAGES = 3


def describe(feature: Feature, style: InstructionStyle = "terse") -> str:
    """Write the instruction for restoring a feature.

    `terse` names the functions, in order of file and line; a small model can read it. `full` adds signature, docstring, tests and
    pages of documentation. `issue` tells the same as a person would (`tasks.issue`). `ambiguous` names no function: it gives the
    purpose as the docstrings state it and the test files.
    """
    functions = sorted(feature.functions, key=lambda f: (f.path, f.first_line))
    if style == "ambiguous":
        return _ambiguous(feature, functions)
    if style == "issue":
        return as_issue(feature, functions)
    terse = _terse(functions, feature.removed)
    if style == "terse":
        return terse
    return "\n".join([terse, "", *(_specified(function, feature) for function in functions), *_tests(feature)])


def _terse(functions: Sequence[Function], removed: bool) -> str:
    if len(functions) == 1:
        what = "it was removed, with every import of it" if removed else "its body was removed"
        return f"Implement `{functions[0].qualname}` in {functions[0].path}: {what}. Make its tests pass."
    places: dict[str, list[str]] = {}
    for function in functions:
        places.setdefault(function.path, []).append(f"`{function.qualname}`")
    named = "; ".join(f"{', '.join(names)} in {path}" for path, names in places.items())
    what = "they were removed, with every import of them" if removed else "their bodies were removed"
    return f"Implement {named}: {what}. Make their tests pass."


def _specified(function: Function, feature: Feature) -> str:
    """Specify one function: where it belongs, its signature, its docstring, and the pages that mention it."""
    signature, docstring = feature.language.outline(feature.sources[function.path], function.qualname)
    lines = [f"`{function.qualname}` in {function.path}:", f"    {signature}"]
    if docstring:
        lines += ["", textwrap.indent(docstring, "    ")]
    name = re.compile(rf"\b{re.escape(function.qualname.rpartition('.')[2])}\b")
    pages = [path for path, text in feature.docs.items() if name.search(text)]
    if pages:
        lines.append(f"    Documentation: {', '.join(pages[:_MOST_PAGES])}")
    return "\n".join([*lines, ""])


def _tests(feature: Feature) -> list[str]:
    count = len(feature.fail_to_pass)
    shown = [f"- {test_id}" for test_id in feature.fail_to_pass[:_MOST_TESTS]]
    more = [f"- and {count - _MOST_TESTS} more"] if count > _MOST_TESTS else []
    return ["Tests that fail without it:", *shown, *more]


def _ambiguous(feature: Feature, functions: Sequence[Function]) -> str:
    files = list(dict.fromkeys(test_id.partition("::")[0] for test_id in feature.fail_to_pass))
    named = ", ".join(files[:_MOST_TESTS]) + (", ..." if len(files) > _MOST_TESTS else "")
    purposes: list[str] = []
    for function in functions:
        _, docstring = feature.language.outline(feature.sources[function.path], function.qualname)
        sentence = " ".join(docstring.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
        if sentence and not any(re.search(rf"\b{re.escape(f.qualname.rpartition('.')[2])}\b", sentence) for f in functions):
            purposes.append(sentence)
    folder = "the project" if len({f.path for f in functions}) > 1 else functions[0].path
    purpose = f" It used to do this: {'; '.join(purposes)}." if purposes else ""
    return f"Something is missing from {folder}: tests in {named} fail.{purpose} Find out what, and bring it back."
