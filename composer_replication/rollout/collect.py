"""Groups of trajectories, collected concurrently and reproducibly.

The trajectories are split into fixed cohorts. Inside a cohort turns go in lock-step, so which sessions share a batch does not
depend on how long any test took, and a repeated or resumed run samples the same tokens. Cohorts overlap: while one's tools,
tests and grades run in threads, another one's turn is sampled.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TypeVar

from composer_replication.rollout.agent_loop import Rollout, derive_seed
from composer_replication.rollout.protocol import Budgets, Engine, Env
from composer_replication.tokens import ChatRenderer
from composer_replication.types import Group, Trajectory
from composer_replication.types.errors import ComposerError, ConfigError

__all__ = ["Progress", "StalledError", "collect_groups", "first_error"]

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a collection is."""

    finished: int
    """Trajectories ended and graded."""
    total: int
    turns: int
    """Turns sampled so far, all trajectories together."""
    sampled_tokens: int


async def collect_groups(
    tasks: Sequence[TaskT],
    *,
    make_env: Callable[[TaskT], Env],
    engine: Engine,
    renderer: ChatRenderer,
    budgets: Budgets,
    group_size: int,
    seed: int,
    step: int,
    temperature: float,
    policy_version: int,
    cohorts: int = 2,
    env_workers: int = 2,
    on_progress: Callable[[Progress], None] | None = None,
    deadline_s: float | None = None,
    arm: str = "",
) -> list[Group]:
    """Roll out `group_size` siblings of every task and grade them; one group per task, in order.

    Args:
        make_env: called `group_size` times per task; must be cheap. An env is used by one thread at a time.
        seed, step: with task id, sibling and turn they determine every draw.
        cohorts: into how many parts the trajectories are split; part of what determines the samples' last bits.
        env_workers: threads for tools, tests and grades.
        deadline_s: most seconds without any engine or env call finishing; None for no limit.

    Raises:
        ConfigError: the same task twice.
        StalledError: the deadline passed; it names what was waited for. Other errors of envs and engine propagate as they are.
    """
    context_tokens = min(budgets.context_tokens, engine.context_window)
    rollouts = []
    for task in tasks:
        for sibling in range(group_size):
            env = make_env(task)
            base = derive_seed(seed, step, env.task_id, sibling)
            name = f"{step}/{env.task_id}/{sibling}"
            rollouts.append(Rollout(name, env, renderer, budgets, seed=base, context_tokens=context_tokens))
    if len({r.trajectory_id for r in rollouts}) < len(rollouts):
        raise ConfigError("the same task is given twice in one collection", fix="pass every task once and raise group_size")
    collection = _Collection(engine, rollouts, temperature, policy_version, arm, env_workers, on_progress, deadline_s)
    trajectories = await collection.run(cohorts)
    task_ids = [t.task_id for t in trajectories[::group_size]]
    return [
        Group(
            group_id=f"{step}/{task_id}",
            task_id=task_id,
            trajectories=tuple(trajectories[i * group_size : (i + 1) * group_size]),
        )
        for i, task_id in enumerate(task_ids)
    ]


@dataclass(slots=True)
class _Collection:
    engine: Engine
    rollouts: list[Rollout]
    temperature: float
    policy_version: int
    arm: str
    env_workers: int
    on_progress: Callable[[Progress], None] | None
    deadline_s: float | None
    engine_thread: ThreadPoolExecutor = field(init=False)
    env_threads: ThreadPoolExecutor = field(init=False)
    grading: asyncio.Semaphore = field(init=False)
    done: dict[str, Trajectory] = field(default_factory=dict)
    in_flight: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    moved: float = 0.0

    async def run(self, cohorts: int) -> list[Trajectory]:
        """All trajectories, in the order of `rollouts`."""
        self.engine_thread = ThreadPoolExecutor(1, "rollout-engine")
        self.env_threads = ThreadPoolExecutor(self.env_workers, "rollout-env")
        self.grading = asyncio.Semaphore(max(1, self.env_workers - 1))  # a thread stays free for the turns of other cohorts
        stalled = False
        try:
            async with asyncio.TaskGroup() as outer:
                watch = outer.create_task(self._watch())
                async with asyncio.TaskGroup() as group:
                    for cohort in _split(self.rollouts, cohorts):
                        group.create_task(self._run_cohort(cohort, group))
                watch.cancel()
        except BaseExceptionGroup as errors:
            error = first_error(errors)
            stalled = isinstance(error, StalledError)
            raise error from None
        finally:
            for pool in (self.engine_thread, self.env_threads):
                pool.shutdown(wait=not stalled, cancel_futures=True)
            if not stalled:
                self.engine.close([r.trajectory_id for r in self.rollouts])
        return [self.done[r.trajectory_id] for r in self.rollouts]

    async def _run_cohort(self, cohort: list[Rollout], group: asyncio.TaskGroup) -> None:
        await asyncio.gather(*(self._in(self.env_threads, "reset", r.begin) for r in cohort))
        live = self._retire(cohort, group)
        while live:
            sample = partial(self.engine.sample, [r.request() for r in live], temperature=self.temperature)
            samples = await self._in(self.engine_thread, "sample", sample)
            self.turns += len(samples)
            acts = [partial(r.act, s) for r, s in zip(live, samples, strict=True)]
            await asyncio.gather(*(self._in(self.env_threads, "tools", act) for act in acts))
            ended = [r.trajectory_id for r in live if not r.live]
            if ended:
                await self._in(self.engine_thread, "close", partial(self.engine.close, ended))
            live = self._retire(live, group)
            self._report()

    def _retire(self, rollouts: list[Rollout], group: asyncio.TaskGroup) -> list[Rollout]:
        """Start grading those that have ended; return the others."""
        for rollout in rollouts:
            if not rollout.live:
                group.create_task(self._finish(rollout))
        return [r for r in rollouts if r.live]

    async def _finish(self, rollout: Rollout) -> None:
        finish = partial(rollout.finish, policy_version=self.policy_version, temperature=self.temperature, arm=self.arm)
        async with self.grading:
            self.done[rollout.trajectory_id] = await self._in(self.env_threads, "grade", finish)
        self._report()

    def _report(self) -> None:
        if self.on_progress is not None:
            sampled = sum(r.sampled for r in self.rollouts)
            progress = Progress(finished=len(self.done), total=len(self.rollouts), turns=self.turns, sampled_tokens=sampled)
            self.on_progress(progress)

    async def _in(self, pool: ThreadPoolExecutor, phase: str, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` in a thread of `pool`."""
        self.in_flight[phase] += 1
        result = await asyncio.get_running_loop().run_in_executor(pool, work)
        self.in_flight[phase] -= 1
        self.moved = time.monotonic()
        return result

    async def _watch(self) -> None:
        """Raise when nothing has finished for `deadline_s`."""
        self.moved = time.monotonic()
        while self.deadline_s is not None:
            await asyncio.sleep(self.deadline_s / 4)
            if time.monotonic() - self.moved > self.deadline_s:
                waiting = ", ".join(f"{count} x {phase}" for phase, count in self.in_flight.items() if count)
                raise StalledError(
                    f"the rollout stalled: nothing finished for {self.deadline_s} s, waiting for {waiting}",
                    fix="raise the deadline if a single call may take that long; otherwise look at what it waits for",
                )


class StalledError(ComposerError):
    """A call does not return; its thread is still busy."""


def _split(rollouts: list[Rollout], parts: int) -> list[list[Rollout]]:
    """Contiguous parts of nearly equal size, none empty."""
    parts = min(parts, len(rollouts))
    bounds = [len(rollouts) * i // parts for i in range(parts + 1)] if parts else []
    return [rollouts[a:b] for a, b in pairwise(bounds)]


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error inside a group, or inside a group of groups."""
    inner = errors.exceptions[0]
    return first_error(inner) if isinstance(inner, BaseExceptionGroup) else inner
