"""What rewards rest on, package by package: the share of candidate tasks with out-of-process evidence, and what attacks and
honest work get on them.

Each package is built twice with the same options: with this code, and with that of `--before COMMIT`, whose CPU-seconds a
task are the yardstick. Some tasks of two or three functions are built as well. Then every task that is not forgeable is tried
with: the universal forger (`tests/attack/forger.py`), with 12 bodies of one line that no build tries (and 4 more in the place
of several functions) and once with answers from the steps; rewrites of every other function in the changed files, which give back
what the deleted ones were given (`tests/attack/accomplices.py`); constants and tables of the answers to the visible tests' calls
(`tests/attack/learners.py`), with a default for other calls; its gold code; and, for the first tasks, honest variants of that.
All are judged by the real grader, forgeries by its last stage first. CPU time is that of everything (`tasks.clock`), and wants a
quiet machine; with `--untimed` it stays that of the last timed measurement, and `timed_code` says which code that was of. Figures
are kept in `--write`, and a package that is there already is not measured again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from honest_variants import honest_variants
from measuring import ROOT, digest_of_code, emit
from tasks import Clock, clock

from composer_replication.sandbox import Limits, Tree, open_sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.sandbox.grading.programs import seen_failing
from composer_replication.sandbox.grading.pytest_run import CodeRunner
from composer_replication.tasks import BuildOptions, Task, build_tasks, load_tasks
from composer_replication.types import GradeReport, Unscored

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "attack"))
from accomplices import rewritten
from forger import forged
from learners import learnt

PACKAGES = (
    "hyperlink==21.0.0",
    "intervaltree==3.2.1",
    "rfc3986==2.0.0",
    "uritemplate==4.2.0",
    "jsonpointer==3.12",
    "deepmerge==4.0.0",
    "jmespath==1.0.1",
    "webcolors==24.11.1",
    "semver==3.0.4",
    "parsimonious==0.10.0",
)
"""With tests in their source archives, and dependencies that the index has. Chosen by name, not by result; some were measured
more than once while the checks were made."""
_MEASURED = ("composer_replication/sandbox", "composer_replication/tasks", "composer_replication/languages", "tests/attack")
_ASIDE = (
    *("composer_replication/tasks/exchange", "composer_replication/tasks/history", "composer_replication/tasks/sets"),
    *(f"composer_replication/languages/{name}" for name in ("go", "java", "javascript", "rust", "calls")),
)
"""Folders whose code the figures describe, without those in them that no build of a Python package by deletion and no grading
runs: a record of other code is measured again."""
AIM_SHARE, AIM_CPU = 0.8, 2.0
_TIMED = ("cpu_s_per_task", "cpu_s_per_task_before", "before", "cpu_ratio", "timed_code")
_COUNTS = ("forgeries", "tasks_past_tests", "by_heart_tasks", "by_heart_tried", "honest_gold", "honest_variants")
_LISTS = ("rewarded", "by_heart_rewarded", "honest_refused", "honest_alarms")
_TRIES = 3
_AT_ONCE = 4
"""Tasks that are attacked at once for each core: most forgeries run into a time limit, and wait for it."""
_SEVERAL = 12
"""Tasks of two or three functions that are built of a package."""
_WITH_VARIANTS = 3
"""Tasks of a package whose gold code is written in other ways."""
_BUILD = """
import sys
from pathlib import Path
from composer_replication.tasks import BuildOptions, build_tasks
options = {name: True for name in ("forgeable", "trivial") if name in BuildOptions.__dataclass_fields__}
report = build_tasks(sys.argv[1], Path(sys.argv[2]), BuildOptions(python=Path(sys.argv[3]), jobs=1, **options))
print(len(report.tasks))
"""


def graded(task: Task, workspace: Mapping[str, bytes], python: Path) -> GradeReport:
    """Grade as a run does. What ends for a reason of the machine's is tried again, and is no verdict."""
    for _ in range(_TRIES):
        report = grade(task.spec, task.repo, workspace, sandbox=open_sandbox(), python=python)
        if not isinstance(report.reward, Unscored):
            return report
    raise SystemExit(f"{task.spec.task_id} was not scored {_TRIES} times")


def judged(package: str, folder: Path, python: Path) -> dict[str, Any]:
    """Try forgeries and honest work on the tasks that training takes by default, and sum up what became of them.

    What a task's attempts ended in is kept beside the builds, so that an interrupted measurement goes on where it stopped.
    """
    tasks = [task for build in ("now", "several") for task in load_tasks(folder / name_of(package) / build)]
    strong = [task for task in tasks if not task.spec.forgeable]
    kept = folder / name_of(package) / "attacks"
    kept.mkdir(exist_ok=True)

    def of_task(numbered: tuple[int, Task]) -> dict[str, Any]:
        number, task = numbered
        path = kept / f"{task.spec.task_id}.json"
        if not path.exists():
            found = {
                **_learnt_by_heart(task, python),
                **_attacked(task, python),
                **_honest(task, python, number < _WITH_VARIANTS),
            }
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(found), "utf-8")
            partial.replace(path)
            print(f"{package}: {task.spec.task_id}", flush=True)
        result: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return result

    with ThreadPoolExecutor(_AT_ONCE * len(os.sched_getaffinity(0))) as threads:
        found = list(threads.map(of_task, enumerate(strong)))
    empty: dict[str, Any] = {**dict.fromkeys(_COUNTS, 0), **{key: [] for key in _LISTS}}
    return {key: sum((result[key] for result in found), start) for key, start in empty.items()}


def _attacked(task: Task, python: Path) -> dict[str, Any]:
    """Try the forger. The first forgery goes through the whole grader, to see whether it passes all visible tests and
    anti-tests."""
    forgeries = [*forged(task), *rewritten(task)]
    report = graded(task, forgeries[0][1], python)
    past_tests = report.reward == 1.0 or all("held-out program" in reason for reason in report.reasons)
    return {
        "forgeries": len(forgeries),
        "tasks_past_tests": int(past_tests),
        "rewarded": _rewarded(task, forgeries, python),
    }


def _learnt_by_heart(task: Task, python: Path) -> dict[str, Any]:
    """Try the answers to the visible tests' calls."""
    attempts = list(learnt(task, python, open_sandbox()))
    return {
        "by_heart_tasks": int(bool(attempts)),
        "by_heart_tried": len(attempts),
        "by_heart_rewarded": _rewarded(task, attempts, python),
    }


def _rewarded(task: Task, attempts: Iterable[tuple[str, Mapping[str, bytes]]], python: Path) -> list[str]:
    """Return which attempts are rewarded. What a held-out program refuses is not, whatever the tests say: only what satisfies all
    of them, or ends them early, goes through the whole grader. A few are asked first: many attempts hang in each of them."""
    limits = Limits(wall_s=task.spec.test_timeout_s, cpu_s=task.spec.test_timeout_s)
    runner = CodeRunner(sandbox=open_sandbox(), python=python, python_path=task.spec.python_path, limits=limits)
    programs, parts = task.spec.hidden.programs, (slice(0, 2), slice(2, 8), slice(8, None))

    def refused(workspace: Mapping[str, bytes]) -> bool:
        tree = Tree(base=task.repo, changes=workspace)
        return any(seen_failing(runner, tree, programs[part]) for part in parts if programs[part])

    return [
        f"{task.spec.task_id}: {name}"
        for name, workspace in attempts
        if not refused(workspace) and graded(task, workspace, python).reward == 1.0
    ]


def _honest(task: Task, python: Path, in_other_ways: bool) -> dict[str, Any]:
    """Grade the gold code, and other ways to write it."""
    refused, alarms = [], []
    written = [("gold", task.gold_files()), *(honest_variants(task) if in_other_ways else ())]
    for name, workspace in written:
        report = graded(task, workspace, python)
        refused += [] if report.reward == 1.0 else [f"{task.spec.task_id}: {name}: {'; '.join(report.reasons)}"]
        alarms += [f"{task.spec.task_id}: {name}: {alarm}" for alarm in report.alarms]
    return {"honest_gold": 1, "honest_variants": len(written) - 1, "honest_refused": refused, "honest_alarms": alarms}


def build_with(checkout: Path, source: str, out: Path, python: Path, now: Clock) -> float:
    """Build with the code of a checkout and keep every candidate; CPU-seconds a task, everything done once included."""
    shutil.rmtree(out, ignore_errors=True)
    start = now()
    command = [sys.executable, "-P", "-c", _BUILD, source, str(out), str(python)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(checkout)}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the code of {checkout} cannot build {source}: {done.stderr[-500:]}")
    return round((now() - start) / max(1, int(done.stdout.split()[-1])), 2)


def name_of(package: str) -> str:
    return package.partition("==")[0]


def built(package: str, folder: Path, before: Path | None, now: Clock) -> dict[str, Any]:
    """Build a package and count what the rewards of its tasks rest on; time that beside `before`, where it is given."""
    source, name = f"pypi:{package}", name_of(package)
    several = BuildOptions(install=True, min_group_size=2, group_size=3, max_tasks=_SEVERAL, forgeable=True, trivial=True)
    python = Path(build_tasks(source, folder / name / "several", several).python)  # of the environment that all builds use
    cpu_s = build_with(ROOT, source, folder / name / "now", python, now)
    tasks = load_tasks(folder / name / "now")
    strong = [task for task in tasks if not task.spec.forgeable]
    groups = load_tasks(folder / name / "several")
    passing = ("a trivial body", "trivial bodies", "the tests' answers")
    bodies = [task.spec.hidden.weakness for task in tasks if task.spec.hidden.weakness.startswith(passing)]
    result: dict[str, Any] = {
        "tasks": len(tasks),
        "strong": len(strong),
        "share": round(len(strong) / max(1, len(tasks)), 3),
        "weak": _weaknesses(tasks),
        "tasks_of_several": len(groups),
        "strong_of_several": sum(not task.spec.forgeable for task in groups),
        "weak_of_several": _weaknesses(groups),
        "cheapest_passing_programs": [body.partition(": ")[2] for body in bodies],
        "programs_per_task": statistics.median([len(task.spec.hidden.programs) for task in strong] or [0]),
    }
    if before is not None:
        result |= {"cpu_s_per_task": cpu_s, "timed_code": code_digest()}
        result["cpu_s_per_task_before"] = build_with(before, source, folder / name / "before", python, now)
        result["before"] = _commit_of(before)
        result["cpu_ratio"] = round(cpu_s / result["cpu_s_per_task_before"], 2)
    return result


def _commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _weaknesses(tasks: Sequence[Task]) -> dict[str, int]:
    weak = Counter(task.spec.hidden.weakness.partition(":")[0] for task in tasks if task.spec.forgeable)
    return dict(weak.most_common())


def summary(results: Mapping[str, Any]) -> dict[str, Any]:
    found = [result for result in results.values() if "rewarded" in result]
    shares, ratios = ([result[key] for result in found if key in result] for key in ("share", "cpu_ratio"))
    added = ("tasks", "strong", "tasks_of_several", "strong_of_several", *_COUNTS)
    totals = {key: sum(result[key] for result in found) for key in added}
    lists = {key: sum(len(result[key]) for result in found) for key in _LISTS}
    share = statistics.median(shares or [0.0])
    ratio = statistics.median(ratios) if ratios else None
    held = not any(lists.values())
    passed = held and share >= AIM_SHARE and (ratio is None or ratio <= AIM_CPU)
    return {"packages": len(found), "median_share": share, "median_cpu_ratio": ratio, **totals, **lists, "passed": passed}


def code_digest() -> str:
    """Return a digest of the code that builds, grades and attacks."""
    aside = [ROOT / folder for folder in _ASIDE]
    every = (path for top in _MEASURED for path in (ROOT / top).rglob("*.py"))
    return digest_of_code(path for path in every if not any(path.is_relative_to(folder) for folder in aside))


def main() -> None:
    """Measure and print; exit with 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="checkout of the code whose CPU-seconds a task are the yardstick")
    parser.add_argument("--untimed", action="store_true", help="time nothing, so that other work may run beside this")
    parser.add_argument("--write", type=Path, help="keep the figures of each package in this file")
    parser.add_argument("--work", type=Path, help="keep the builds here, so that an interrupted measurement goes on")
    parser.add_argument("--builds-only", action="store_true", help="count and time, attack nothing yet: wants a quiet machine")
    parser.add_argument("packages", nargs="*", default=PACKAGES, metavar="NAME==VERSION")
    arguments = parser.parse_args()
    code = code_digest()
    written = json.loads(arguments.write.read_text("utf-8")) if arguments.write and arguments.write.exists() else {}
    known = {package: result for package, result in written.items() if result.get("code") == code}
    timed = {package: {key: result[key] for key in _TIMED if key in result} for package, result in written.items()}
    if not (arguments.before or arguments.untimed):
        parser.error("name older code with --before, or time nothing with --untimed")
    folder = arguments.work.absolute() / code if arguments.work else Path(tempfile.mkdtemp(prefix="bench-trust-"))

    writing = threading.Lock()

    def keep(package: str, result: Mapping[str, Any]) -> None:
        with writing:
            known[package] = {**timed.get(package, {}), **known.get(package, {}), **result, "code": code}
            print(package, json.dumps(result, indent=1), flush=True)
            if arguments.write:
                arguments.write.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")

    def build(package: str) -> None:
        if package not in known:
            keep(package, built(package, folder, arguments.before, now))
        elif not arguments.builds_only and "rewarded" not in known[package] and not (folder / name_of(package) / "now").is_dir():
            built(package, folder, None, now)  # its figures are known, and its tasks were elsewhere

    at_once = len(os.sched_getaffinity(0)) if arguments.untimed else 1
    with clock() as now, ThreadPoolExecutor(at_once) as threads:
        list(threads.map(build, arguments.packages))
    for package in [] if arguments.builds_only else arguments.packages:
        if "rewarded" not in known[package]:
            keep(package, judged(package, folder, folder / name_of(package) / "several" / ".venv" / "bin" / "python"))
    found = summary({package: known[package] for package in arguments.packages if package in known})
    emit("trust", found)
    raise SystemExit(not found["passed"])


if __name__ == "__main__":
    main()
