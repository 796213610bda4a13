"""The tables of docs/coverage.md, written from docs/figures/coverage_world.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from coverage_world import LISTS, summary
from measuring import ROOT

DATA, PAGE = ROOT / "docs" / "figures" / "coverage_world.json", ROOT / "docs" / "coverage.md"
BEGIN, END = "<!-- tables of benchmarks/coverage_page.py -->", "<!-- end of the tables -->"
_Results = Mapping[str, Mapping[str, Any]]


def tables(found: Mapping[str, _Results]) -> str:
    """Return the page's tables of what `coverage_world` has found: one of all languages, then one of each."""
    known = [language for language in LISTS if found.get(language)]
    heads = (
        "language",
        "tried",
        "built",
        "share",
        "tasks",
        "CPU-seconds a source",
        "features in several files",
        "wrong verdicts",
    )
    lines = [_row(heads), _row(["---"] * len(heads))]
    for language in known:
        one = summary(language, found[language])
        several = f"{one['multi_file_share']:.0%} of {one['whole_features']}" if one["whole_features"] else ""
        counts = (one["sources"], one["built"], f"{one['share']:.0%}", one["tasks"], one["median_cpu_s"], several)
        lines.append(_row([language, *counts, one["wrong_verdicts"]]))
    return "\n\n".join(["\n".join(lines), *(_of_language(language, found[language]) for language in known)])


def _of_language(language: str, results: _Results) -> str:
    heads = (language, "tasks", "tests", "not forgeable", "CPU-seconds", "whole features, in several files", "why not")
    lines = [_row(heads), _row(["---"] * len(heads))]
    for source, one in results.items():
        features = one.get("features")
        whole = f"{features['tasks']}, {features['multi_file']}" if features else ""
        strong = f"{one['strong_share']:.0%}" if one["tasks"] else ""
        why = " ".join(one["reason"].split()).replace("|", "\\|")[:200]
        lines.append(_row([f"`{source}`", one["tasks"], one.get("tests", ""), strong, round(one["cpu_s"]), whole, why]))
    return "\n".join(lines)


def _row(cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def rewritten(page: str, found: Mapping[str, _Results]) -> str:
    """Return the page with its tables made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables(found)}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text("utf-8"), json.loads(DATA.read_text("utf-8"))), "utf-8")
