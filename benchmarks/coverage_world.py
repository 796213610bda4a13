"""Which of the most used packages of each language can be built, without options of their own, into how many tasks, at what cost.

Every source of a language's list, `coverage_LANGUAGE.txt`, is built as `composer tasks build --from LIST --install` builds it, a
few tasks of each. Then the solution of each task must be rewarded, and doing nothing must not. A source's figures are in the file
of `--write` as soon as it is done, with a digest of the code that they are of; a source that is in there is not built again
(`--retry`: unless it was refused). The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from measuring import ROOT, digest_of_code, emit

from composer_replication.api.rollouts import evaluate
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.report import BUILD_REPORT, BuildOptions
from composer_replication.tasks.sets.build_set import build_set
from composer_replication.tasks.sets.report import SourceOutcome
from composer_replication.tasks.sets.sources_file import folders_of, read_sources

_MEASURED = tuple(f"composer_replication/{room}/**/*.py" for room in ("tasks", "languages", "sandbox", "grading"))
"""The code that the figures are of."""
LISTS = {path.stem.partition("_")[2]: path for path in sorted(Path(__file__).parent.glob("coverage_*.txt"))}
AIM_BUILT = {"python": 0.75}
"""Least share of a list that builds."""
AIM_BUILT_ELSEWHERE = 0.6
AIM_CANDIDATES_A_MINUTE = {"python": 120.0}
"""Least candidates that a core decides on in a minute, in the median of the sources."""
AIM_TASKS = 5
"""Least tasks of each source that builds."""
_MOST_TASKS, _TIMEOUT_S = 5, 600.0


def measured(outcome: SourceOutcome, work: Path) -> dict[str, Any]:
    """Return what became of one source."""
    found: dict[str, Any] = {
        key: value for key, value in asdict(outcome).items() if key in ("tasks", "candidates", "cpu_s", "reason")
    }
    if not outcome.tasks:
        return found
    report = json.loads((work / outcome.folder / BUILD_REPORT).read_text("utf-8"))
    tried = outcome.tasks + len(report["dropped"])
    weak = sum(bool(entry["detail"]) for entry in report["dropped"])
    tasks = load_tasks(work / outcome.folder)
    return {
        **found,
        "tried": tried,
        "strong_share": round(outcome.tasks / max(1, outcome.tasks + weak), 3),
        "files_a_task": round(statistics.mean(len(task.gold_files()) for task in tasks), 2),
        "tests": report["tests_passing"],
        "notes": report["notes"],
    }


def verdicts(work: Path) -> dict[str, list[str]]:
    """Return the tasks whose solution is not rewarded, and those where doing nothing is."""
    wanted = {"oracle": 1.0, "noop": 0.0}
    found = {policy: evaluate(work, policy).rows for policy in wanted}
    return {policy: [row["task_id"] for row in rows if row["reward"] != wanted[policy]] for policy, rows in found.items()}


def of_source(source: str, work: Path) -> dict[str, Any]:
    """Build a source into a folder of its own, and return what became of it."""
    folder = work / folders_of([source])[source]
    options = BuildOptions(install=True, max_tasks=_MOST_TASKS, jobs=1, timeout_s=_TIMEOUT_S, budget_s=2 * _TIMEOUT_S)
    (outcome,) = build_set([source], folder, options, retry=True).sources
    wrong = verdicts(folder) if outcome.tasks else {}
    return {**measured(outcome, folder), "wrong_verdicts": wrong, "code": code_digest()}


def code_digest() -> str:
    """Return a digest of the code that is measured."""
    return digest_of_code(path for pattern in _MEASURED for path in ROOT.glob(pattern))


def summary(language: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a language's sources amount to, and whether its aims are met."""
    built = [result for result in results.values() if result["tasks"]]
    rates = [60.0 * result["tried"] / result["cpu_s"] for result in built if result["cpu_s"]]
    share = len(built) / max(1, len(results))
    rate = statistics.median(rates or [0.0])
    fast = rate >= AIM_CANDIDATES_A_MINUTE.get(language, 0.0)
    few = sum(result["tasks"] < AIM_TASKS for result in built)
    wrong = sum(len(ids) for result in built for ids in result["wrong_verdicts"].values())
    return {
        "sources": len(results),
        "built": len(built),
        "share": round(share, 3),
        "tasks": sum(result["tasks"] for result in built),
        "built_with_few_tasks": few,
        "median_candidates_a_cpu_minute": round(rate, 1),
        "wrong_verdicts": wrong,
        "of_other_code": sum(result["code"] != code_digest() for result in results.values()),
        "passed": share >= AIM_BUILT.get(language, AIM_BUILT_ELSEWHERE) and fast and not few and not wrong,
    }


def main() -> None:
    """Measure and print; exit with 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--language", choices=LISTS, action="append", help="measure this one; repeatable, by default each")
    parser.add_argument("--work", type=Path, required=True, help="keep the builds here, a folder a language")
    parser.add_argument("--write", type=Path, required=True, help="keep the figures in this file")
    parser.add_argument("--retry", action="store_true", help="try refused sources again")
    arguments = parser.parse_args()
    known: dict[str, dict[str, Any]] = json.loads(arguments.write.read_text("utf-8")) if arguments.write.exists() else {}
    languages = arguments.language or list(LISTS)
    for language in languages:
        listed = read_sources(LISTS[language])
        found = {source: one for source, one in known.get(language, {}).items() if source in listed}
        wanted = [source for source in listed if source not in found or (arguments.retry and not found[source]["tasks"])]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            made = threads.map(partial(of_source, work=arguments.work / language), wanted)
            for source, one in zip(wanted, made, strict=True):
                print(source, one["tasks"] or one["reason"], flush=True)
                found[source] = one
                known[language] = {source: found[source] for source in listed if source in found}
                arguments.write.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")
    summaries = {language: summary(language, known[language]) for language in languages}
    passed = all(one["passed"] for one in summaries.values())
    emit("coverage_world", {**summaries, "passed": passed})
    raise SystemExit(not passed)


if __name__ == "__main__":
    main()
