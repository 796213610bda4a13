"""What the arms of a run share: tasks, sandbox, verdicts already given, and what hints may be made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from composer_replication.config import RunConfig
from composer_replication.envs.coding import CodingEnv, TestCache
from composer_replication.envs.tools import TOOLSETS, Toolset
from composer_replication.hints import HintContext, detectors_named, generators_named
from composer_replication.observe import RunDir, Terminal
from composer_replication.sandbox import Sandbox, open_sandbox
from composer_replication.sandbox.grading.grade import GradeCache
from composer_replication.tasks.join import join_tasks
from composer_replication.tasks.store import Task
from composer_replication.teachers import Teacher
from composer_replication.trainer.cpu_clock import CpuClock
from composer_replication.trainer.journal import ArmJournal, Meter, RolloutMeter
from composer_replication.trainer.llm_judge import ask_teacher
from composer_replication.trainer.preflight import check_run, limits_of, prove_solutions
from composer_replication.trainer.signals import HintSources

__all__ = ["RunContext", "toolset_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Opened once per run."""

    config: RunConfig
    run_dir: RunDir
    terminal: Terminal
    sandbox: Sandbox
    verdicts: GradeCache
    test_runs: TestCache
    train: Sequence[Task]
    held_out: Sequence[Task]
    pythons: dict[str, Path]
    """By task id: the interpreter that runs its tests."""
    contexts: dict[str, HintContext]
    """By task id: tools, the project's documentation and the instruction."""
    gold: dict[str, Sequence[str]]
    """By task id: the deleted code, which no hint may give away."""

    @classmethod
    def open(cls, config: RunConfig, run_dir: RunDir, terminal: Terminal, *, proven: bool = False) -> RunContext:
        """Check the run, open the sandbox and prove that tests run in it, unless that is `proven` already.

        Raises ConfigError, TaskError or SandboxError.
        """
        checked = check_run(config)
        sandbox = open_sandbox(config.sandbox.kind)
        terminal.isolation(sandbox.isolation.summary())
        if not proven:
            prove_solutions(config, checked, sandbox)
        return cls(
            config=config,
            run_dir=run_dir,
            terminal=terminal,
            sandbox=sandbox,
            verdicts=GradeCache(run_dir.path / "verdicts.jsonl"),
            test_runs=TestCache(),
            train=checked.train,
            held_out=checked.held_out,
            pythons=dict(checked.pythons),
            contexts={t.spec.task_id: _context(config, t) for t in checked.train},
            gold={t.spec.task_id: t.deleted_code() for t in checked.train},
        )

    def meter(self) -> RolloutMeter:
        """Return a meter that counts this process's CPU-seconds and those of its sandbox from now on."""
        return RolloutMeter(CpuClock(self.sandbox).cpu_s)

    def journal(self, config: RunConfig, arm: str, meter: Meter) -> ArmJournal:
        """Return the record of one arm."""
        return ArmJournal(self.run_dir, self.terminal, arm, config.steps, meter)

    def hint_sources(self, config: RunConfig) -> HintSources:
        """What an arm finds hints with and makes them of.

        Raises:
            ConfigError: it names a detector or generator that there is not, or `judge` without teachers.
        """
        hint, ask = config.loss.hint, None
        if config.teachers and "judge" in hint.generators:
            judge = Teacher.of(config.teachers[0])
            ask = ask_teacher(judge, self.run_dir.path / "ledger.sqlite", config.loss.replay.max_total_usd)
        return HintSources(
            contexts=self.contexts,
            gold=self.gold,
            detectors=detectors_named(hint.detectors),
            generators=generators_named(hint.generators, ask),
        )

    def join(self, first: Task, second: Task) -> Task | str:
        """One task from two, kept in the run directory for every arm, or why there is none.

        Raises:
            SandboxError: the box broke.
            StorageError: it cannot be kept.
        """
        python, style = self.pythons[first.spec.task_id], self.config.tasks.instruction or "terse"
        folder = self.run_dir.path / "tasks"
        task = join_tasks([first, second], folder, sandbox=self.sandbox, python=python, style=style)
        if isinstance(task, Task):
            name = task.spec.task_id
            self.pythons[name] = python
            self.contexts[name] = _context(self.config, task)
            self.gold[name] = task.deleted_code()
        return task

    def make_env(self, task: Task, withheld: frozenset[str] = frozenset()) -> CodingEnv:
        """A fresh episode of a task, in which the agent does not see the tests `withheld`."""
        return CodingEnv(
            task,
            sandbox=self.sandbox,
            python=self.pythons[task.spec.task_id],
            limits=limits_of(self.config.sandbox, task),
            grade_cache=self.verdicts,
            test_cache=self.test_runs,
            toolset=toolset_of(self.config),
            withheld=withheld,
        )


def toolset_of(config: RunConfig) -> Toolset:
    """What agents are offered."""
    return "shell" if config.sandbox.shell else "basic"


def _context(config: RunConfig, task: Task) -> HintContext:
    return HintContext(tools=TOOLSETS[toolset_of(config)], documentation=task.docs(), instruction=task.spec.instruction)
