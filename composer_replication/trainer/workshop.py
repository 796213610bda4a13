"""What the arms of a run share: tasks, sandbox, verdicts already given, and what hints may be made of."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from composer_replication.config import RunConfig
from composer_replication.envs.coding import CodingEnv, TestCache
from composer_replication.envs.tools import CODING_TOOLS
from composer_replication.errors import ConfigError
from composer_replication.hints import HintContext
from composer_replication.observe import RunDir, Terminal
from composer_replication.sandbox import Limits, Sandbox, open_sandbox
from composer_replication.sandbox.grading import GradeCache
from composer_replication.tasks.store import Task, load_tasks

__all__ = ["Workshop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Opened once per run."""

    config: RunConfig
    run_dir: RunDir
    terminal: Terminal
    sandbox: Sandbox
    verdicts: GradeCache
    test_runs: TestCache
    train: Sequence[Task]
    held_out: Sequence[Task]
    contexts: Mapping[str, HintContext]
    """By task id: tools, the project's documentation and the instruction."""
    gold: Mapping[str, Sequence[str]]
    """By task id: the deleted code, which no hint may give away."""

    @classmethod
    def open(cls, config: RunConfig, run_dir: RunDir, terminal: Terminal) -> Workshop:
        """Load the tasks and open the sandbox. Raises TaskError, SandboxError or ConfigError."""
        train = load_tasks(config.tasks.train)
        held_out = [] if config.tasks.held_out is None else load_tasks(config.tasks.held_out)
        _check(config, train, held_out)
        sandbox = open_sandbox(config.sandbox.kind)
        terminal.isolation(sandbox.isolation.summary())
        return cls(
            config=config,
            run_dir=run_dir,
            terminal=terminal,
            sandbox=sandbox,
            verdicts=GradeCache(run_dir.path / "verdicts.jsonl"),
            test_runs=TestCache(),
            train=train,
            held_out=held_out,
            contexts={t.spec.task_id: _context(t) for t in train},
            gold={t.spec.task_id: [c.decode(errors="replace") for c in t.gold_files().values()] for t in train},
        )

    def make_env(self, task: Task) -> CodingEnv:
        """A fresh episode of a task."""
        limits = self.config.sandbox
        return CodingEnv(
            task,
            sandbox=self.sandbox,
            python=Path(sys.executable),
            limits=Limits(
                wall_s=task.spec.test_timeout_s,
                cpu_s=task.spec.test_timeout_s,
                memory_mb=limits.memory_mb,
                processes=limits.processes,
                disk_mb=limits.disk_mb,
            ),
            grade_cache=self.verdicts,
            test_cache=self.test_runs,
        )


def _context(task: Task) -> HintContext:
    return HintContext(tools=CODING_TOOLS, documentation=task.docs(), instruction=task.spec.instruction)


def _check(config: RunConfig, train: Sequence[Task], held_out: Sequence[Task]) -> None:
    if len(train) < config.rollout.groups:
        raise ConfigError(
            f"rollout.groups is {config.rollout.groups}, but tasks.train has {len(train)} tasks",
            fix="lower rollout.groups or build more tasks",
        )
    both = {t.spec.task_id for t in train} & {t.spec.task_id for t in held_out}
    if both:
        raise ConfigError(
            f"task {min(both)} is in tasks.train and in tasks.held_out", fix="keep every task in one of the two folders"
        )
