"""Validated tasks per minute and core on public packages, and how much longer validation with the whole suite per task takes.

The comparison proves every candidate with all of the project's tests, as SWE-smith does (2504.21798, section 3): the same
validator, told that every test covers every line. Beside it stands the least that way can do: one run of all tests in a new
interpreter per candidate, which proves neither that the tests are steady nor that the gold code passes the grader, and makes no
hidden checks. CPU time is that of everything: this process, the launcher, the boxes, the kernel's work for them, counted by a
control group. What a repository costs once (fetching, installing, the baseline with coverage, compiling) is reported beside it.

`--write docs/figures/tasks.json`, which `make bench-tasks` does, keeps each project's number of tests and ratios beside those of
other projects measured before; `make figures` draws them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import cpu_seconds, emit

from composer_replication.sandbox import Command, Ending, Limits, Tree, open_sandbox
from composer_replication.tasks import BuildEvent, BuildOptions, BuildReport, build_tasks, load_tasks
from composer_replication.tasks.proofs.baseline import baseline_from_json, baseline_to_json
from composer_replication.types.errors import ComposerError

PACKAGES = (
    "inflection==0.5.1",
    "toolz==1.0.0",
    "boltons==26.2.0",
    "humanize==4.17.0",
    "pyrsistent==0.20.0",
    "itsdangerous==2.2.0",
    "tomlkit==0.13.3",
    "click==8.2.1",
)
GROUPS = (3, 10)
"""Fewest and most functions of the group tasks."""
ALL_TESTS = 1 << 30
DRAWN = ("tests", "ratio", "ratio_to_one_cold_run")
_ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")


class Clock:
    """CPU seconds of everything this benchmark caused."""

    def __init__(self, group: Path | None) -> None:
        self._group = group
        self.how = "cgroup" if group is not None else "processes (the boxes' supervisors are missing)"

    def __call__(self) -> float:
        if self._group is not None:
            return int((self._group / "cpuacct.usage").read_text()) / 1e9
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return max(cpu_seconds(), ended.ru_utime + ended.ru_stime) + open_sandbox().cpu_s


@contextmanager
def clock() -> Iterator[Clock]:
    """This process enters a group of its own, where it may make one: boxes are counted in groups below it."""
    own = next((line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if ":cpuacct:" in line), "")
    home = _ACCOUNTS / own.strip("/")
    group = home / f"bench-tasks-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield Clock(None)
        return
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield Clock(group)
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (home / "cgroup.procs").write_text(pid)
        with suppress(OSError):  # boxes that still wait for a command have groups below it
            group.rmdir()


@dataclass(slots=True)
class Stopwatch:
    """A build's progress: the CPU time at which validation began."""

    clock: Clock
    began: float = 0.0

    def __call__(self, event: BuildEvent) -> None:
        if event.stage == "validating" and not self.began:
            self.began = self.clock()


def build(source: str, out: Path, options: BuildOptions, now: Clock) -> tuple[BuildReport, float, float]:
    """Build; the report, CPU seconds of what is done once per repository, and those of validation."""
    watch, start = Stopwatch(now), now()
    report = build_tasks(source, out, options, progress=watch)
    return report, watch.began - start, now() - watch.began


def figures(report: BuildReport, out: Path, cpu_s: float) -> dict[str, Any]:
    """What one build was worth."""
    tried = len(report.tasks) + len(report.dropped)
    verdicts = [json.loads(line) for line in (out / ".build" / "verdicts.jsonl").read_text().splitlines()]
    return {
        "tasks": len(report.tasks),
        "tried": tried,
        "candidates": report.candidates,
        "yield": round(len(report.tasks) / max(1, tried), 3),
        "flaky_share": round(sum(v["flaky"] > 0 for v in verdicts) / max(1, tried), 3),
        "dropped": dict(Counter(entry.reason for entry in report.dropped).most_common()),
        "cpu_s_per_task": round(cpu_s / max(1, len(report.tasks)), 3),
        "tasks_per_core_minute": round(60 * len(report.tasks) / cpu_s, 1),
    }


def with_whole_suite(source: str, out: Path, options: BuildOptions, now: Clock) -> dict[str, Any]:
    """The same candidates, each validated with every passing test."""
    whole = dataclasses.replace(options, pass_to_pass_cap=ALL_TESTS)
    build_tasks(source, out, dataclasses.replace(whole, budget_s=1e-9))
    record = out / ".build" / "baseline.json"
    baseline = baseline_from_json(json.loads(record.read_text()))
    blurred = {
        path: {line: baseline.passing if tests & baseline.passing else tests for line, tests in lines.items()}
        for path, lines in baseline.coverage.items()
    }
    record.write_text(json.dumps(baseline_to_json(dataclasses.replace(baseline, coverage=blurred))))
    report, _, cpu_s = build(source, out, whole, now)
    return figures(report, out, cpu_s)


def one_cold_run(out: Path, python: Path, now: Clock) -> dict[str, Any]:
    """All tests of every task of a build, in a new interpreter, over the tree without the feature and with its bytecode."""
    sandbox, tasks = open_sandbox(), load_tasks(out)
    start = now()
    for task in tasks:
        spec = task.spec
        changes = {path: (task.repo / path).read_bytes() for path in task.gold_files()}
        options = ("-q", "-p", "no:cacheprovider", "-o", f"pythonpath={' '.join(spec.python_path)}")
        limits = Limits(wall_s=600, cpu_s=600, output_bytes=1 << 24)
        command = Command(argv=(str(python), "-m", "pytest", *options), python=python, limits=limits)
        result = sandbox.run(Tree(base=out / ".build" / "compiled", changes=changes), command)
        if result.ending is not Ending.EXITED or result.returncode not in (1, 2):  # 2: test files cannot be imported without it
            raise SystemExit(f"{spec.task_id}: pytest does not say that tests failed: {result.stdout[-2000:].decode()}")
    cpu_s = (now() - start) / len(tasks)
    return {"tasks": len(tasks), "cpu_s_per_task": round(cpu_s, 3), "tasks_per_core_minute": round(60 / cpu_s, 1)}


def measure(package: str, folder: Path, now: Clock, most: int, jobs: int) -> dict[str, Any]:
    """Single functions, groups, and single functions with the whole suite."""
    source, name = f"pypi:{package}", package.partition("==")[0]
    environment = folder / name / "single"
    options = BuildOptions(max_tasks=most, install=True, jobs=jobs)
    single, once_s, cpu_s = build(source, environment, options, now)
    result = {"tests": single.tests_passing, "once_cpu_s": round(once_s, 1), "single": figures(single, environment, cpu_s)}
    installed = dataclasses.replace(options, install=False, python=Path(single.python))
    grouped = dataclasses.replace(installed, min_group_size=GROUPS[0], group_size=GROUPS[1])
    report, _, cpu_s = build(source, folder / name / "groups", grouped, now)
    result["groups"] = figures(report, folder / name / "groups", cpu_s)
    few = dataclasses.replace(installed, max_tasks=max(1, most // 4))
    result["whole_suite"] = with_whole_suite(source, folder / name / "whole", few, now)
    result["one_cold_run"] = one_cold_run(folder / name / "whole", Path(single.python), now)
    for other, ratio in (("whole_suite", "ratio"), ("one_cold_run", "ratio_to_one_cold_run")):
        result[ratio] = round(result["single"]["tasks_per_core_minute"] / result[other]["tasks_per_core_minute"], 2)
    return result


def keep(file: Path, package: str, result: dict[str, Any]) -> None:
    """Put a package's figures beside those of others that were measured before."""
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    known[package] = {key: result[key] for key in DRAWN}
    file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max", type=int, default=40, help="tasks per package and size; a quarter with the whole suite")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--write", type=Path, help="add tests and ratio of each package to this file")
    parser.add_argument("packages", nargs="*", default=PACKAGES, metavar="NAME==VERSION")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="bench-tasks-"))
    try:
        with clock() as now:
            for package in arguments.packages:
                try:
                    results[package] = measure(package, folder, now, arguments.max, arguments.jobs)
                except ComposerError as error:
                    results[package] = {"error": str(error)}
                print(package, json.dumps(results[package], indent=1), flush=True)
                if arguments.write and "error" not in results[package]:
                    keep(arguments.write, package, results[package])
    finally:
        shutil.rmtree(folder)
    measured = [result for result in results.values() if "error" not in result]
    summary = {"packages": results, "cpu": now.how, "jobs": arguments.jobs}
    if measured:
        for ratio in DRAWN[1:]:
            summary[f"median_{ratio}"] = statistics.median(result[ratio] for result in measured)
    emit("tasks", summary)


if __name__ == "__main__":
    main()
