"""Our own tasks as a source of environments: features deleted from repositories, worked on and graded in a sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from composer_replication.config import RunConfig
from composer_replication.envs.coding import CodingEnv, TestCache
from composer_replication.envs.tools import Toolset
from composer_replication.sandbox import Sandbox
from composer_replication.sandbox.grading.grade import GradeCache
from composer_replication.tasks.join import join_tasks
from composer_replication.tasks.store import Task
from composer_replication.trainer.preflight import limits_of


@dataclass(kw_only=True)
class CodingTasks:
    """An `EnvSource` over task folders; equal workspaces are graded once."""

    config: RunConfig
    folder: Path
    """Where joined tasks are kept."""
    sandbox: Sandbox
    grades: GradeCache
    test_runs: TestCache
    train: Sequence[Task]
    held_out: Sequence[Task]
    pythons: dict[str, Path]
    """By task id: the interpreter that runs its tests."""

    def __post_init__(self) -> None:
        self._by_id = {t.spec.task_id: t for t in (*self.train, *self.held_out)}

    def task(self, task_id: str) -> Task:
        """Return the task of that id."""
        return self._by_id[task_id]

    def make(self, task_id: str, hidden_tests: frozenset[str] = frozenset()) -> CodingEnv:
        """Create a fresh episode in which the agent does not see `hidden_tests`."""
        task = self._by_id[task_id]
        return CodingEnv(
            task,
            sandbox=self.sandbox,
            python=self.pythons[task_id],
            limits=limits_of(self.config.sandbox, task),
            grade_cache=self.grades,
            test_cache=self.test_runs,
            toolset=toolset_of(self.config),
            withheld=hidden_tests,
        )

    def join(self, first: Task, second: Task) -> Task | str:
        """Make one task of two, kept in the run directory for every arm, or say why there is none.

        Raises:
            SandboxError: the sandbox broke.
            StorageError: the task cannot be kept.
        """
        python, style = self.pythons[first.spec.task_id], self.config.tasks.instruction or "terse"
        task = join_tasks([first, second], self.folder, sandbox=self.sandbox, python=python, style=style)
        if isinstance(task, Task):
            self.pythons[task.spec.task_id] = python
            self._by_id[task.spec.task_id] = task
        return task


def toolset_of(config: RunConfig) -> Toolset:
    """Return the tools that agents are offered."""
    return "shell" if config.sandbox.shell else "basic"
