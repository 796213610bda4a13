"""Collect rollouts: choose the tasks of a step, roll them out, and evaluate on held-out tasks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.envs.source import AnyTask
from composer_replication.policy_gradient import has_signal
from composer_replication.rollouts.agent_loop import derive_seed
from composer_replication.rollouts.collect import Progress, RunOptions, collect_groups, run_rollouts
from composer_replication.rollouts.protocol import AsyncEngine, Budgets, Engine, Env
from composer_replication.rollouts.reattempt import AGAIN, Reattempt
from composer_replication.tasks.store import Task
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.engines.open_engine import PolicyEngine
from composer_replication.trainer.journal import ArmJournal, flat, refuse_unscored, rollout_metrics
from composer_replication.trainer.rewards import group_verdicts
from composer_replication.trainer.run_context import RunContext
from composer_replication.trainer.sampling.curriculum import Curriculum
from composer_replication.trainer.sampling.task_sampler import choose_tasks
from composer_replication.trainer.sampling.task_shards import TaskShard
from composer_replication.trainer.step_rewards import mean_scores
from composer_replication.types import Group, HintedTurn, Trajectory
from composer_replication.types.errors import CheckpointError, SandboxError

EVAL_STEP, TRACE_STEP = -1, -2
"""Step names of rollouts outside training, so that their draws are their own."""


class RolloutCollector:
    """The collector of one arm's groups, which counts them in the journal's meter.

    Args:
        share: the part of the tasks that this replica trains on; None for all.
        steps: scores every turn of each trajectory for the curriculum; asked only with `curriculum.prm_credit`.
    """

    no_reattempts = "loss.replay.reattempts = 0"
    """The setting of a run file without which `try_again` is not called."""

    def __init__(
        self,
        context: RunContext,
        config: RunConfig,
        engine: PolicyEngine,
        renderer: ChatRenderer,
        journal: ArmJournal,
        share: TaskShard | None = None,
        steps: Callable[[Sequence[Trajectory]], Sequence[Sequence[float | None]]] | None = None,
    ) -> None:
        self.context = context
        self.config = config
        self.arm = journal.arm
        self.engine = engine
        self.renderer = renderer
        self.journal = journal
        chosen = config.curriculum
        self.curriculum = Curriculum(chosen, context.coding.train, config.seed) if chosen.enabled else None
        """Chooses the tasks; None takes all in turn."""
        self._share = share
        self._steps = steps
        self._train = list(context.train)
        """The tasks trained on: the run's tasks, and tasks joined since."""
        self._hidden: dict[str, frozenset[str]] = {}
        """By task id: tests that its last rollouts did not see."""

    @property
    def context_window(self) -> int:
        """Most positions the policy can attend to."""
        return self.engine.context_window

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the metrics of a step's rollouts and of the curriculum."""
        return {**rollout_metrics(groups), **({} if self.curriculum is None else self.curriculum.metrics())}

    def state_dict(self) -> dict[str, Any]:
        """Return what the choice of the next tasks depends on, plain JSON."""
        return {"curriculum": None if self.curriculum is None else self.curriculum.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint, with the tasks that were joined until then.

        Raises:
            CheckpointError: one of them is gone and cannot be made again.
        """
        if self.curriculum is None:
            return
        curriculum = state["curriculum"]
        for first, second, task in curriculum["joined"]:
            pair = self.context.coding.task(first), self.context.coding.task(second)
            found = self.context.join(*pair) if task else ""
            if task and not isinstance(found, Task):
                raise CheckpointError(
                    f"{self.arm}: the task {task}, joined of {first} and {second}, is gone and cannot be made again: {found}",
                    fix="restore its folder below tasks/ in the run directory, or give the new run another name",
                )
            self._add_joined(*pair, found)
        self.curriculum.load_state_dict(curriculum)

    async def collect(self, step: int, version: int) -> list[Group]:
        """Return the groups of one training step; with `rollout.refills`, further tasks' for each without signal. The engine then
        leaves the device to what learns from them."""
        rollout = self.config.rollout
        tasks, others = self._choose(step)
        groups: list[Group] = []
        for refill in range(rollout.refills + 1):
            groups += await self._roll_out(tasks, rollout.group_size, step=step, version=version, phase="rollout")
            missing = rollout.groups - sum(has_signal(group_verdicts(g)) for g in groups)
            tried = {g.task_id for g in groups}
            left = [t for t in others if t.spec.task_id not in tried]
            tasks = self._refill(left, step, refill, min(missing, len(left)))
            if not tasks:
                break
        self.engine.rest()
        if self.curriculum is not None:
            self.curriculum.learn(groups, step, self._scores(groups))
            pair = self.curriculum.to_join()
            if pair is not None:
                await self._join(*pair)
        return groups

    def _scores(self, groups: Sequence[Group]) -> Mapping[str, float]:
        """Return the mean score of each trajectory's turns where the curriculum counts them.

        Raises:
            ValueError: nothing scores them.
        """
        if self.config.curriculum.prm_credit == 0:
            return {}
        if self._steps is None:
            raise ValueError("curriculum.prm_credit is above 0, and nothing scores the turns")
        trajectories = flat(groups)
        return mean_scores(trajectories, self._steps(trajectories))

    async def _join(self, first: Task, second: Task) -> None:
        """Make a harder task of two that are solved: seconds of tests, at most once a step. A broken sandbox postpones it."""
        found: Task | str = ""
        try:
            found = await asyncio.to_thread(self.context.join, first, second)
        except SandboxError as error:
            outcome = f"not joined now: {error}"
        else:
            self._add_joined(first, second, found)
            outcome = f"joined into {found.spec.task_id}" if isinstance(found, Task) else f"not joined: {found}"
        self.journal.note(f"{first.spec.task_id} and {second.spec.task_id} are solved; {outcome}")

    def _add_joined(self, first: Task, second: Task, found: Task | str) -> None:
        assert self.curriculum is not None
        task = found if isinstance(found, Task) else None
        self.curriculum.add_joined(first, second, task)
        if task is not None:
            self._train.append(task)

    def _choose(self, step: int) -> tuple[list[AnyTask], list[AnyTask]]:
        """Return the tasks of a step, and all tasks that a refill may use."""
        train, seed, count = self._train, self.config.seed, self.config.rollout.groups
        if self.curriculum is not None:
            if self._share is not None:
                joined = train[len(self.context.train) :]
                train = [*self._share.of_round(self.context.train, step), *joined]
            return self.curriculum.choose(train, seed, step, count), train
        if self._share is not None:
            return self._share.of_step(train, step, count)
        return choose_tasks(train, seed, step, count), train

    def _refill(self, left: Sequence[AnyTask], step: int, refill: int, count: int) -> list[AnyTask]:
        if self.curriculum is not None:
            return self.curriculum.choose(left, self.config.seed, step, count, refill=refill + 1)
        return random.Random(f"{self.config.seed}/{step}/{refill}").sample(left, count)

    async def try_again(
        self, step: int, version: int, failures: Sequence[tuple[Trajectory, HintedTurn]], *, counted: bool = True
    ) -> list[Trajectory]:
        """Return second attempts at trajectories of a step, each from its hinted turn on with the hint in the context. Their
        records are those of attempts without a hint. What is new in them is `counted`. The engine then leaves the device."""
        config, budgets = self.config, Budgets.of(self.config.rollout)
        context_tokens = min(budgets.context_tokens, self.engine.context_window)
        rollouts = [
            Reattempt(
                failed,
                hinted,
                self.context.make_env(failed.task_id, self._hidden.get(failed.task_id, frozenset())),
                self.renderer,
                budgets,
                seed=derive_seed(config.seed, step, failed.trajectory_id, AGAIN),
                context_tokens=context_tokens,
                switch=self.no_reattempts,
            )
            for failed, hinted in failures
        ]
        if not rollouts:
            return []
        with self._shown("hinted re-attempts", len(rollouts)) as report:
            at_once = min(len(rollouts), config.rollout.open_at_most or len(rollouts))
            found = await run_rollouts(rollouts, at_once=at_once, **self._how(self.engine, version, report))
        self.engine.rest()
        if counted:
            new = [replace(one, turns=one.turns[hinted.turn :]) for one, (_, hinted) in zip(found, failures, strict=True)]
            self.journal.meter.count(new)
        return found

    async def try_out(self, task: AnyTask, siblings: int) -> list[Group]:
        """Return rollouts of a task, made as those of the first step are."""
        return await self._roll_out([task], siblings, step=1, version=0, phase=f"{siblings} rollouts of {task.spec.task_id}")

    async def record_traces(self) -> list[Group]:
        """Roll out the starting policy on every training task, keep the trajectories for replay, and return their groups.

        A replica takes the tasks of its share. The trajectories are in the run directory.
        """
        count = self.config.loss.replay.traces_per_task
        tasks = self.context.train if self._share is None else self._share.of_round(self.context.train, 1)
        groups = await self._roll_out(tasks, count, step=TRACE_STEP, version=0, phase="record traces")
        self.engine.rest()
        self.context.run_dir.write_traces(self.arm, flat(groups))
        return groups

    async def evaluate(self, version: int) -> dict[str, float]:
        """Return pass@1 on the held-out tasks, with the same draws every time; keep the trajectories in the run directory.

        Empty when there are no such tasks.
        """
        if not self.context.held_out:
            return {}
        samples = self.config.eval.samples
        groups = await self._roll_out(self.context.held_out, samples, step=EVAL_STEP, version=version, phase="eval")
        return self.journal.record_evaluation(version, groups)

    async def roll_out_held_out(self, tasks: Sequence[AnyTask]) -> list[Group]:
        """Return the groups of an evaluation on some of the held-out tasks, graded or not. They are not counted."""
        budgets = Budgets.of(self.config.rollout)
        return await self._collect_groups(tasks, self.config.eval.samples, EVAL_STEP, 0, "eval", self.engine, budgets)

    async def _roll_out(self, tasks: Sequence[AnyTask], siblings: int, *, step: int, version: int, phase: str) -> list[Group]:
        """Return rollouts of the policy, counted. Raises SandboxError when none of them could be graded."""
        budgets = Budgets.of(self.config.rollout)
        groups = await self._collect_groups(tasks, siblings, step, version, phase, self.engine, budgets)
        refuse_unscored(groups, f"{self.arm}: {phase}")
        self.journal.meter.count(flat(groups))
        return groups

    async def _collect_groups(
        self,
        tasks: Sequence[AnyTask],
        siblings: int,
        step: int,
        version: int,
        phase: str,
        engine: Engine | AsyncEngine,
        budgets: Budgets,
    ) -> list[Group]:
        with self._shown(phase, len(tasks) * siblings) as report:
            return await collect_groups(
                tasks,
                make_env=partial(self._make_env, training=step > 0),
                renderer=self.renderer,
                budgets=budgets,
                group_size=siblings,
                seed=self.config.seed,
                step=step,
                max_rollouts=self.config.rollout.open_at_most,
                **self._how(engine, version, report),
            )

    @contextmanager
    def _shown(self, phase: str, total: int) -> Iterator[Callable[[Progress], None]]:
        """Show a phase, and yield what its progress is reported to."""
        with self.context.terminal.phase(f"{self.arm}: {phase}", total) as shown:
            yield lambda progress: shown.advance(progress.finished - shown.done)

    def _how(self, engine: Engine | AsyncEngine, version: int, report: Callable[[Progress], None]) -> RunOptions:
        """Return the options that all rollouts of the arm have."""
        rollout = self.config.rollout
        return {
            "engine": engine,
            "temperature": rollout.temperature,
            "policy_version": version,
            "cohorts": rollout.cohorts,
            "env_workers": rollout.env_workers,
            "on_progress": report,
            "max_requests": rollout.max_requests,
            "deadline_s": rollout.stall_s,
            "timeout_s": rollout.timeout_s,
            "arm": self.arm,
            "reward": self.context.reward,
        }

    def _make_env(self, task: AnyTask, *, training: bool) -> Env:
        """Create an episode; in training the curriculum may hide some tests."""
        if self.curriculum is None or not training:
            return self.context.make_env(task.spec.task_id)
        name = task.spec.task_id
        self._hidden[name] = self.curriculum.hidden_tests(name)
        return self.context.make_env(name, self._hidden[name])
