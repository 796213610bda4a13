"""Which of the most downloaded packages can be built, without an option of their own, into how many tasks, at what cost.

Every source of the list is built as `composer tasks build --from LIST --install` builds it, a few tasks of each. Then the
solution of each task must be rewarded, and doing nothing must not. An interrupted run goes on where it stopped: sources that are
built, or refused for a reason that lasts, are kept below `--work`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measuring import emit

from composer_replication.api.rollouts import evaluate
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.report import BUILD_REPORT, BuildOptions
from composer_replication.tasks.sets.build_set import build_set
from composer_replication.tasks.sets.report import SourceOutcome
from composer_replication.tasks.sets.sources_file import read_sources

LIST = Path(__file__).with_name("coverage_python.txt")
AIM_BUILT, AIM_TASKS_A_MINUTE = 0.75, 120.0
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


def summary(results: Mapping[str, Mapping[str, Any]], wrong: Mapping[str, list[str]]) -> dict[str, Any]:
    built = [result for result in results.values() if result["tasks"]]
    rates = [60.0 * result["tried"] / result["cpu_s"] for result in built if result["cpu_s"]]
    share = len(built) / max(1, len(results))
    rate = statistics.median(rates or [0.0])
    return {
        "sources": len(results),
        "built": len(built),
        "share": round(share, 3),
        "tasks": sum(result["tasks"] for result in built),
        "median_candidates_a_cpu_minute": round(rate, 1),
        "wrong_verdicts": {policy: len(ids) for policy, ids in wrong.items()},
        "passed": share >= AIM_BUILT and rate >= AIM_TASKS_A_MINUTE and not any(wrong.values()),
    }


def main() -> None:
    """Measure and print; exit with 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", type=Path, default=LIST, help="a source a line")
    parser.add_argument("--work", type=Path, required=True, help="keep the builds here")
    parser.add_argument("--write", type=Path, help="keep the figures in this file")
    parser.add_argument("--retry", action="store_true", help="try refused sources again")
    arguments = parser.parse_args()
    options = BuildOptions(
        install=True, max_tasks=_MOST_TASKS, jobs=len(os.sched_getaffinity(0)), timeout_s=_TIMEOUT_S, budget_s=2 * _TIMEOUT_S
    )
    report = build_set(
        read_sources(arguments.list),
        arguments.work,
        options,
        retry=arguments.retry,
        progress=lambda outcome: print(outcome.source, outcome.tasks or outcome.reason, flush=True),
    )
    results = {outcome.source: measured(outcome, arguments.work) for outcome in report.sources}
    wrong = verdicts(arguments.work) if report.tasks else {"oracle": [], "noop": []}
    if arguments.write:
        record = {"sources": results, "wrong_verdicts": wrong}
        arguments.write.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")
    found = summary(results, wrong)
    emit("coverage_world", found)
    raise SystemExit(not found["passed"])


if __name__ == "__main__":
    main()
