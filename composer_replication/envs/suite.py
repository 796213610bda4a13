"""The tasks of a folder, and what the environments over them share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from composer_replication.envs.coding import CodingEnv, TestCache, refuse_shell_in
from composer_replication.envs.oracle import sound_tasks
from composer_replication.envs.tools import TOOLSETS, Toolset
from composer_replication.sandbox import Limits, SandboxKind, open_sandbox
from composer_replication.sandbox.grading.grade import GradeCache, grade
from composer_replication.tasks.interpreters import interpreters_of
from composer_replication.tasks.store import Task
from composer_replication.tasks.strength import load_strong_tasks
from composer_replication.types import GradeReport
from composer_replication.types.errors import ConfigError, one_of


class TaskSuite:
    """The shared state of every integration: tasks, interpreters, one sandbox, and caches so that equal workspaces run once.

    Args:
        folder: tasks or a set of tasks, as `composer tasks build` writes it.
        python: the interpreter that runs the tests; for each task the one that it was built with where this is None.
        toolset: what agents are offered (`tools.TOOLSETS`).
        forgeable: take also tasks whose reward can be forged (`tasks.strength`).

    Raises:
        ConfigError: there is no such toolset.
        TaskError: there are no tasks but forgeable ones, one is damaged, or none is sound here (`oracle.sound_tasks`).
        SandboxError: no sandbox is available, it cannot run a shell, or the sandbox broke.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sandbox: SandboxKind = "auto",
        python: Path | None = None,
        toolset: Toolset = "basic",
        forgeable: bool = False,
    ) -> None:
        if toolset not in TOOLSETS:
            raise ConfigError(f"there is no toolset {toolset}", fix=f"one of {', '.join(TOOLSETS)}")
        loaded = load_strong_tasks(folder, forgeable=forgeable)
        self._pythons = interpreters_of(loaded, python, sandbox)
        self.sandbox = open_sandbox(sandbox)
        refuse_shell_in(self.sandbox, toolset)
        self.tasks = sound_tasks(loaded, self._pythons, sandbox=self.sandbox)
        self._by_id = {task.spec.task_id: task for task in self.tasks}
        self._grades, self._tests = GradeCache(), TestCache()
        self._toolset: Toolset = toolset

    def task(self, task_id: str) -> Task:
        """Return the task of that id. Raises ConfigError when there is none."""
        if task_id not in self._by_id:
            raise ConfigError(f"there is no task {task_id}", fix=one_of(task_id, self._by_id))
        return self._by_id[task_id]

    def python(self, task: Task) -> Path:
        """Return the interpreter that runs the tests of one of the tasks."""
        return self._pythons[task.spec.task_id]

    def env(self, task: Task, *, toolset: Toolset | None = None, limits: Limits | None = None) -> CodingEnv:
        """Make a fresh environment over one of the tasks, by default with the suite's tools and the task's own limits."""
        return CodingEnv(
            task,
            sandbox=self.sandbox,
            python=self.python(task),
            limits=limits,
            grade_cache=self._grades,
            test_cache=self._tests,
            toolset=toolset or self._toolset,
        )

    def grade(self, task: Task, changes: Mapping[str, bytes | None]) -> GradeReport:
        """Grade changes to the tree of one of the tasks, by path; None for a deleted file."""
        return grade(task.spec, task.repo, changes, sandbox=self.sandbox, python=self.python(task))


def shared_suite(
    folder: Path,
    sandbox: SandboxKind = "auto",
    python: Path | None = None,
    toolset: Toolset = "basic",
    *,
    forgeable: bool = False,
) -> TaskSuite:
    """Return the suite of a folder, opened once per process: its address can be pickled, its locks cannot."""
    return _opened(Path(folder).absolute(), sandbox, python, toolset, forgeable)


@lru_cache(maxsize=8)
def _opened(folder: Path, sandbox: SandboxKind, python: Path | None, toolset: Toolset, forgeable: bool) -> TaskSuite:
    return TaskSuite(folder, sandbox=sandbox, python=python, toolset=toolset, forgeable=forgeable)
