"""Which of the most used packages of each language can be built, without options of their own, into how many tasks, at what cost.

Every source of a language's list, `coverage_LANGUAGE.txt`, is built as `composer tasks build --from LIST --install` builds it, a
few tasks of each; in Python a few whole features (`--mode feature`) as well, with the environment that was found. Then the
solution of each task must be rewarded, and doing nothing must not. A source's figures are in the file
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
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from measuring import ROOT, digest_of_code, emit

from composer_replication.api.rollouts import evaluate
from composer_replication.languages.registry import build_language
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.report import BUILD_REPORT, BuildOptions
from composer_replication.tasks.sets.build_set import build_set
from composer_replication.tasks.sets.report import SourceOutcome
from composer_replication.tasks.sets.sources_file import folders_of, read_sources
from composer_replication.tasks.sources.layout import guess_layout

_MEASURED = tuple(f"composer_replication/{room}/**/*.*" for room in ("tasks", "languages", "sandbox"))
"""The code that the figures are of."""
LISTS = {path.stem.partition("_")[2]: path for path in sorted(Path(__file__).parent.glob("coverage_*.txt"))}
AIM_BUILT = {"python": 0.75}
"""Least share of a list that builds."""
AIM_BUILT_ELSEWHERE = 0.6
AIM_MULTI_FILE, MODULES = 0.3, 5
"""Least share of whole features that are in several files, of projects with so many modules or more."""
AIM_TASKS = 5
"""Least tasks of each source that builds."""
_MOST_TASKS, _BUDGET_S = 5, 1200.0


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
    options = BuildOptions(install=True, max_tasks=_MOST_TASKS, jobs=1, budget_s=_BUDGET_S)
    (outcome,) = build_set([source], folder, options, retry=True).sources
    wrong = verdicts(folder) if outcome.tasks else {}
    found = {**measured(outcome, folder), "wrong_verdicts": wrong, "code": code_digest()}
    return found | ({"features": features_of(source, folder / outcome.folder, options)} if _has_features(outcome, folder) else {})


def _has_features(outcome: SourceOutcome, folder: Path) -> bool:
    return outcome.tasks > 0 and "feature" in build_language(load_tasks(folder / outcome.folder)[0].spec.language).modes


def features_of(source: str, built: Path, options: BuildOptions) -> dict[str, Any]:
    """Build whole features of a source with the environment of an earlier build, and return how many are in several files."""
    folder = built.parent.with_name(f"{built.parent.name}-features")
    python = built / ".venv" / "bin" / "python"
    features = replace(options, mode="feature", min_group_size=0, group_size=0, install=False, python=python)
    (outcome,) = build_set([source], folder, features, retry=True).sources
    tasks = load_tasks(folder / outcome.folder) if outcome.tasks else []
    modules = len(guess_layout(load_tasks(built)[0].repo).sources)
    return {
        "tasks": len(tasks),
        "candidates": outcome.candidates,
        "multi_file": sum(len(task.gold_files()) > 1 for task in tasks),
        "modules": modules,
        "reason": outcome.reason,
        "wrong_verdicts": verdicts(folder) if tasks else {},
    }


def code_digest() -> str:
    """Return a digest of the code that is measured."""
    files = (path for pattern in _MEASURED for path in ROOT.glob(pattern))
    return digest_of_code(path for path in files if path.is_file() and path.suffix != ".pyc")


def summary(language: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a language's sources amount to, and whether its aims are met."""
    built = [result for result in results.values() if result["tasks"]]
    share = len(built) / max(1, len(results))
    few = sum(result["tasks"] < AIM_TASKS for result in built)
    features = [result["features"] for result in built if "features" in result]
    wrong = sum(len(ids) for one in (*built, *features) for ids in one["wrong_verdicts"].values())
    large = [one for one in features if one["modules"] >= MODULES]
    multi_file = sum(one["multi_file"] for one in large) / max(1, sum(one["tasks"] for one in large))
    whole = share >= AIM_BUILT.get(language, AIM_BUILT_ELSEWHERE) and (not large or multi_file >= AIM_MULTI_FILE)
    return {
        "sources": len(results),
        "built": len(built),
        "share": round(share, 3),
        "tasks": sum(result["tasks"] for result in built),
        "built_with_few_tasks": few,
        "median_cpu_s": round(statistics.median([result["cpu_s"] for result in built] or [0.0]), 1),
        "whole_features": sum(one["tasks"] for one in features),
        "multi_file_share": round(multi_file, 3),
        "wrong_verdicts": wrong,
        "of_other_code": sum(result["code"] != code_digest() for result in results.values()),
        "passed": whole and not few and not wrong,
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
