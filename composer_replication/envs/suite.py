"""The tasks of a folder, and what the environments over them share."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from composer_replication.envs.coding import CodingEnv, TestCache
from composer_replication.envs.oracle import prove_solution
from composer_replication.envs.tools import TOOLSETS, Toolset
from composer_replication.sandbox import SandboxKind, open_sandbox
from composer_replication.sandbox.grading.grade import GradeCache
from composer_replication.tasks.build import build_python
from composer_replication.tasks.proofs.task_copies import refuse_task_copies
from composer_replication.tasks.store import Task
from composer_replication.tasks.strength import load_strong_tasks
from composer_replication.types.errors import ConfigError, one_of


class TaskSuite:
    """The shared state of every integration: tasks, one sandbox, one interpreter, and caches so that equal workspaces run once.

    Args:
        folder: as `composer tasks build` writes it.
        python: the interpreter that runs the tests; as `tasks.build.build_python` says when None.
        toolset: what agents are offered (`tools.TOOLSETS`).
        forgeable: take also tasks whose reward can be forged (`tasks.strength`).

    Raises:
        ConfigError: there is no such toolset.
        TaskError: there are no tasks but forgeable ones, one is damaged, a sandbox shows the code that one deletes, or the
            interpreter does not solve the first possible one with its own solution.
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
        self.tasks = load_strong_tasks(folder, forgeable=forgeable)
        self.python = (python or build_python(folder, sandbox)).absolute()
        self.sandbox = open_sandbox(sandbox)
        self._by_id = {task.spec.task_id: task for task in self.tasks}
        self._grades, self._tests = GradeCache(), TestCache()
        self._toolset: Toolset = toolset
        self.env(self.tasks[0])  # raises where these tools are not to be had in this sandbox
        refuse_task_copies(self.tasks, self.sandbox, self.python)
        for task in [task for task in self.tasks if not task.spec.impossible][:1]:
            prove_solution(task, sandbox=self.sandbox, python=self.python)

    def task(self, task_id: str) -> Task:
        """Return the task of that id. Raises ConfigError when there is none."""
        if task_id not in self._by_id:
            raise ConfigError(f"there is no task {task_id}", fix=one_of(task_id, self._by_id))
        return self._by_id[task_id]

    def env(self, task: Task) -> CodingEnv:
        """Make a fresh environment over one of the tasks."""
        return CodingEnv(
            task,
            sandbox=self.sandbox,
            python=self.python,
            grade_cache=self._grades,
            test_cache=self._tests,
            toolset=self._toolset,
        )


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
