"""A task built by the generator, and the graders that the attacks are tried against."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from attacks import Attack, lay_down
from classes import PROJECT as CLASS_PROJECT
from project import PROJECT

from composer_replication.sandbox import Command, Ending, Limits, Sandbox, Tree
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.store import Task
from composer_replication.types import GradeReport, TaskSpec
from composer_replication.types.held_out_checks import HeldOutChecks

PYTHON = Path(sys.executable)
LIMITS = Limits(wall_s=6.0, cpu_s=3.0, memory_mb=512)
NAIVE_LIMITS = replace(LIMITS, wall_s=30.0, cpu_s=15.0)
"""Enough for the workspace's own pytest to begin with every plugin, on a machine that has other work."""


def build_task(folder: Path) -> Task:
    """The task whose feature is `discounted`."""
    return build_all(folder / "till", PROJECT)["discounted"]


def build_methods(folder: Path) -> dict[str, Task]:
    """The tasks whose features are methods of a class."""
    return build_all(folder / "hamper", CLASS_PROJECT)


def build_all(project: Path, files: Mapping[str, str]) -> dict[str, Task]:
    """Build as users do; the tasks by the name of what is deleted."""
    for path, text in files.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    tasks = project.with_name(f"{project.name}-tasks")
    build_tasks(str(project), tasks, BuildOptions(trivial=True, task_timeout_s=10.0))
    return tasks_by_name(tasks)


def tasks_by_name(folder: Path) -> dict[str, Task]:
    """The tasks of a folder by the name of what is deleted."""
    return {task.spec.deleted[0].qualname: task for task in load_tasks(folder)}


@contextmanager
def workspace(task: Task, attack: Attack) -> Iterator[Path]:
    """What the agent leaves behind, as a folder."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder) / "work"
        shutil.copytree(task.repo, root)
        lay_down(attack, root)
        try:
            yield root
        finally:
            while root.exists():  # a daemon may put back what is removed, until it finds no folder for it
                shutil.rmtree(root, ignore_errors=True)


def ours(task: Task, root: Path, sandbox: Sandbox, spec: TaskSpec | None = None) -> GradeReport:
    return grade(spec or task.spec, task.repo, root, sandbox=sandbox, python=PYTHON, limits=LIMITS)


def without_hidden_checks(task: Task) -> TaskSpec:
    """The task without its hidden checks."""
    return replace(task.spec, hidden=HeldOutChecks())


def with_anti_tests(task: Task) -> TaskSpec:
    """The task without its held-out programs."""
    return replace(task.spec, hidden=replace(task.spec.hidden, programs=()))


def careless(task: Task) -> TaskSpec:
    """The task with an allow list that names every Python file, so that the grader's own defences are what is tried."""
    return replace(task.spec, editable=("**/*.py",))


def naive(_task: Task, root: Path, sandbox: Sandbox) -> bool:
    """Run pytest where the agent worked, in a box too, and look at its exit status."""
    argv = (str(PYTHON), "-m", "pytest", "-q", "tests")
    env = {"PYTHONPATH": ".", "PYTHONSAFEPATH": "", "PYTHONDONTWRITEBYTECODE": ""}
    result = sandbox.run(Tree(base=root), Command(argv=argv, python=PYTHON, env=env, limits=NAIVE_LIMITS))
    return result.ending is Ending.EXITED and result.returncode == 0
