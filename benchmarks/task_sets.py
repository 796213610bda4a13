"""What a set of many tasks costs: to list, to load and to choose from, in CPU-seconds and memory, and on disk.

The set is written for the purpose: builds of one tree each, whose tasks delete one function. Each figure is taken in a fresh
process, beside one that only imports the same modules. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import emit

from composer_replication.tasks.index import write_index
from composer_replication.tasks.report import BUILD_REPORT
from composer_replication.tasks.store import digests_of, write_task
from composer_replication.types import Deletion, TaskSpec
from composer_replication.types.held_out_checks import HeldOutChecks, HeldOutProgram

AIM_CPU_S = 5.0
_FILES, _TESTS, _PROGRAMS = 34, 60, 16
_LOADING = """
import json, resource, sys
from pathlib import Path
from composer_replication.config import CurriculumConfig
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.strength import load_strong_tasks
from composer_replication.trainer.sampling.curriculum import Curriculum

def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024

folder, found = Path(sys.argv[1]), {"imports_mib": peak()}
start = cpu()
tasks = load_strong_tasks(folder)
found |= {"tasks": len(tasks), "load_cpu_s": cpu() - start, "load_mib": peak() - found["imports_mib"]}
start = cpu()
config = CurriculumConfig(enabled=True, visible_tests=(1.0, 0.5), join_up_to=4)
curriculum = Curriculum(config, tasks, 0)
found["curriculum_cpu_s"] = cpu() - start
start = cpu()
chosen = curriculum.choose(tasks, 0, 1, 8)
found |= {"chosen": len(chosen), "draw_cpu_s": cpu() - start}
from composer_replication.trainer.sampling.curriculum import Record
curriculum.records = {t.spec.task_id: Record(passed=30.0, tried=30.0, view=1) for t in tasks}
curriculum._views = {t.spec.task_id: [frozenset(), frozenset()] for t in tasks}
start = cpu()
pair = curriculum.to_join()
found |= {"join_cpu_s": cpu() - start, "joined": pair is not None}
print(json.dumps(found))
"""
_LIST = "from composer_replication.cli import main; main()"


def write_set(folder: Path, builds: int, tasks: int) -> None:
    """Write `builds` builds of `tasks` tasks each below `folder`."""
    for number in range(builds):
        build, pristine = folder / f"project-{number:03}", folder / f"project-{number:03}" / ".build" / "pristine"
        functions = [f"def function_{i}(x):\n    grown = x + {i}\n    return grown * {number}\n" for i in range(tasks)]
        modules = {f"package/module_{i}.py": "\n\n".join(functions[i::_FILES]) for i in range(_FILES)}
        for path, text in modules.items():
            (pristine / path).parent.mkdir(parents=True, exist_ok=True)
            (pristine / path).write_text(text)
        digests = digests_of(pristine)
        program = HeldOutProgram(steps=json.dumps([[1, "x" * 500]]), expected="[null]", uses="package", new_calls=1)
        for i in range(tasks):
            path = f"package/module_{i % _FILES}.py"
            write_task(
                _spec(number, i, path, HeldOutChecks(programs=(program,) * _PROGRAMS)),
                build / f"project-{number:03}-function-{i}",
                pristine=pristine,
                deleted={path: modules[path].replace(f"grown = x + {i}\n", "raise NotImplementedError\n").encode()},
                provenance={"difficulty": i / tasks, "mode": "stub", "held_out_programs": _PROGRAMS},
                digests=digests,
            )
        (build / BUILD_REPORT).write_text(json.dumps({"python": sys.executable}))
        write_index(build)


def _spec(number: int, i: int, path: str, hidden: HeldOutChecks) -> TaskSpec:
    tests = tuple(f"tests/test_module_{i % _FILES}.py::TestFunction{i}::test_case_{n}" for n in range(_TESTS))
    return TaskSpec(
        task_id=f"project-{number:03}-function-{i}",
        source=f"pypi:project-{number:03}==1.0",
        source_digest=f"{number:064}",
        instruction=f"Implement `function_{i}` in {path}: its body was removed. Make its tests pass.",
        deleted=(Deletion(path=path, qualname=f"function_{i}", lines=2),),
        fail_to_pass=tests[:10],
        pass_to_pass=tests[10:],
        editable=("package/*.py",),
        hidden=hidden,
    )


def measured(folder: Path) -> dict[str, Any]:
    """Load and list a set in fresh processes."""
    loaded = subprocess.run([sys.executable, "-c", _LOADING, str(folder)], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(loaded.stdout.splitlines()[-1])
    before = os.times()
    subprocess.run([sys.executable, "-c", _LIST, "tasks", "list", str(folder)], stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    found["list_cpu_s"] = after.children_user - before.children_user + after.children_system - before.children_system
    usage = subprocess.run(["du", "-s", "--block-size=1M", str(folder)], capture_output=True, text=True, check=True)
    return {
        **{name: round(value, 2) if isinstance(value, float) else value for name, value in found.items()},
        "disk_mib": int(usage.stdout.split()[0]),
    }


def main() -> None:
    """Write a set, measure, and exit with 1 where an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--builds", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=100, help="of each build")
    parser.add_argument("--write", type=Path, help="keep the figures in this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-task-sets-") as folder:
        write_set(Path(folder), arguments.builds, arguments.tasks)
        found = measured(Path(folder))
    found["passed"] = all(
        found[name] <= AIM_CPU_S for name in ("load_cpu_s", "list_cpu_s", "curriculum_cpu_s", "draw_cpu_s", "join_cpu_s")
    )
    if arguments.write:
        arguments.write.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
    emit("task_sets", found)
    raise SystemExit(not found["passed"])


if __name__ == "__main__":
    main()
