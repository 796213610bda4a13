"""Concurrent collection of trajectory groups: every rollout is a coroutine.

A rollout resets its environment, then samples and acts until it stops, then is graded; nothing waits for another rollout. A
server sees as many requests as there are rollouts ready, and tests and grades run while others sample. An engine in this process
is asked through `BatchingEngine`, whose batches do not depend on time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Required, TypedDict, TypeVar, Unpack

from composer_replication.rollouts.agent_loop import RecordFields, Rollout, derive_seed
from composer_replication.rollouts.batching import BatchingEngine
from composer_replication.rollouts.env_threads import EnvThreads, OutOfTimeError, RolloutClock
from composer_replication.rollouts.protocol import AsyncEngine, Budgets, Engine, Env, NoSampleError, Sample, SampleRequest
from composer_replication.rollouts.request_limit import RequestLimit
from composer_replication.tokens import ChatRenderer
from composer_replication.types import Group, Trajectory, Unscored
from composer_replication.types.errors import ComposerError, ConfigError

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a collection."""

    finished: int
    """Trajectories ended and graded."""
    total: int
    turns: int
    """Turns sampled so far in all trajectories."""
    sampled_tokens: int


class RunOptions(TypedDict, total=False):
    """How rollouts are run, whatever they are."""

    engine: Required[Engine | AsyncEngine]
    """An `AsyncEngine` is asked for every rollout by itself, an `Engine` through a `BatchingEngine`."""
    temperature: Required[float]
    policy_version: Required[int]
    cohorts: int
    """For an `Engine`: into how many parts the trajectories are split, by default 2; part of what determines the samples' last
    bits."""
    env_workers: int
    """Threads for tools, tests and grades, by default 2."""
    max_requests: int | None
    """For an `AsyncEngine`: most turns asked for at a time (`RequestLimit`); None for no limit."""
    on_progress: Callable[[Progress], None] | None
    deadline_s: float | None
    """Most seconds without any engine or env call finishing; None for no limit."""
    timeout_s: float | None
    """Most seconds of one rollout: its env calls, its grade and its requests to an `AsyncEngine`. Waiting for a thread, for one
    of the `max_requests`, or for a batch does not count. A rollout that takes longer is `Unscored` and its request is aborted;
    the others continue, and an env call of it may still run when the collection ends. None for no limit."""
    arm: str
    reward: Callable[[Trajectory], float] | None
    """Called in a thread with each trajectory that could be graded; what it returns replaces the env's reward."""


async def collect_groups(
    tasks: Sequence[TaskT],
    *,
    make_env: Callable[[TaskT], Env],
    renderer: ChatRenderer,
    budgets: Budgets,
    group_size: int,
    seed: int,
    step: int,
    max_rollouts: int | None = None,
    **how: Unpack[RunOptions],
) -> list[Group]:
    """Roll out `group_size` siblings of every task and grade them; one group per task, in order.

    When it is cancelled, requests to a server are aborted, and calls that run in threads are waited for.

    Args:
        make_env: called `group_size` times per task; must be cheap. An env is used by one thread at a time.
        seed, step: with task id, sibling and turn they determine every draw.
        max_rollouts: most trajectories that are open at a time, in whole groups; None for all. It is part of what determines the
            samples' last bits.
        how: see `RunOptions`.

    Raises:
        ConfigError: the same task twice.
        StalledError: the deadline passed; it names what was waited for. Other errors of envs and engine propagate as they are.
    """
    context_tokens = min(budgets.context_tokens, how["engine"].context_window)
    rollouts = []
    for task in tasks:
        for sibling in range(group_size):
            env = make_env(task)
            base = derive_seed(seed, step, env.task_id, sibling)
            name = f"{step}/{env.task_id}/{sibling}"
            rollouts.append(Rollout(name, env, renderer, budgets, seed=base, context_tokens=context_tokens))
    at_once = group_size * groups_at_once(group_size, max_rollouts, len(tasks))
    trajectories = await run_rollouts(rollouts, at_once=at_once, **how)
    task_ids = [t.task_id for t in trajectories[::group_size]]
    return [
        Group(
            group_id=f"{step}/{task_id}",
            task_id=task_id,
            trajectories=tuple(trajectories[i * group_size : (i + 1) * group_size]),
        )
        for i, task_id in enumerate(task_ids)
    ]


async def run_rollouts(rollouts: Sequence[Rollout], *, at_once: int, **how: Unpack[RunOptions]) -> list[Trajectory]:
    """Run rollouts to their records, in order, `at_once` of them at a time. Raises as `collect_groups`."""
    if len({r.trajectory_id for r in rollouts}) < len(rollouts):
        raise ConfigError("the same task is given twice in one collection", fix="pass every task once and raise group_size")
    waves = [list(rollouts[start : start + at_once]) for start in range(0, len(rollouts), at_once)]
    names = [[rollout.trajectory_id for rollout in wave] for wave in waves]
    engine = how["engine"]
    collection = _Collection(
        engine=engine if isinstance(engine, AsyncEngine) else BatchingEngine(engine, names, cohorts=how.get("cohorts", 2)),
        rollouts=list(rollouts),
        waves=waves,
        env_threads=EnvThreads(how.get("env_workers", 2)),
        requests=RequestLimit(how.get("max_requests")),
        record={"policy_version": how["policy_version"], "temperature": how["temperature"], "arm": how.get("arm", "")},
        on_progress=how.get("on_progress"),
        deadline_s=how.get("deadline_s"),
        timeout_s=how.get("timeout_s"),
        reward=how.get("reward"),
    )
    return await collection.run()


def groups_at_once(group_size: int, max_rollouts: int | None, groups: int) -> int:
    """Return how many of `groups` are open at a time: at least one, whatever the limit."""
    return max(1, groups if max_rollouts is None else min(groups, max_rollouts // group_size))


@dataclass(slots=True, kw_only=True)
class _Collection:
    engine: AsyncEngine
    rollouts: list[Rollout]
    waves: list[list[Rollout]]
    """The same, by those that are open at the same time: the next ones begin when all of them have ended."""
    env_threads: EnvThreads
    requests: RequestLimit
    record: RecordFields
    on_progress: Callable[[Progress], None] | None
    deadline_s: float | None
    timeout_s: float | None
    reward: Callable[[Trajectory], float] | None = None
    done: dict[str, Trajectory] = field(default_factory=dict)
    in_flight: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    sampled_tokens: int = 0
    moved: float = 0.0

    async def run(self) -> list[Trajectory]:
        """Return all trajectories, in the order of `rollouts`."""
        stalled = False
        try:
            async with asyncio.TaskGroup() as outer:
                watch = outer.create_task(self._watch())
                for wave in self.waves:
                    async with asyncio.TaskGroup() as group:
                        for rollout in wave:
                            group.create_task(self._roll_out(rollout))
                watch.cancel()
        except BaseExceptionGroup as errors:
            error = first_error(errors)
            stalled = isinstance(error, StalledError)
            raise error from None
        finally:
            for rollout in self.rollouts:
                rollout.close()  # whoever waits for one in a thread would be waited for
            self.env_threads.shutdown(wait=not stalled)
            if isinstance(self.engine, BatchingEngine):
                self.engine.shutdown(wait=not stalled)
            else:
                self.engine.close([r.trajectory_id for r in self.rollouts])
        return [self.done[r.trajectory_id] for r in self.rollouts]

    async def _roll_out(self, rollout: Rollout) -> None:
        """Run one rollout from its reset to its record."""
        clock = RolloutClock(self.timeout_s)
        try:
            await self._in_env("reset", rollout.begin, clock)
            turns = itertools.count()
            while rollout.live:
                sample = await self._sample(rollout.request(), next(turns), clock)
                await self._in_env("tools", partial(rollout.act, sample), clock)
                self._report()
            self.engine.close([rollout.trajectory_id])
            finish = partial(self._finish, rollout)
            async with self.env_threads.grading:
                trajectory = await self._in_env("grade", finish, clock)
        except (OutOfTimeError, NoSampleError) as why:
            self.engine.close([rollout.trajectory_id])
            rollout.close()
            trajectory = rollout.abandon(str(why), **self.record)
        self.done[rollout.trajectory_id] = trajectory
        self._report()

    def _finish(self, rollout: Rollout) -> Trajectory:
        """Grade a rollout, and let the run's own reward have the last word."""
        trajectory = rollout.finish(**self.record)
        if self.reward is None or isinstance(trajectory.reward, Unscored):
            return trajectory
        value = float(self.reward(trajectory))
        grade = None if trajectory.grade is None else replace(trajectory.grade, reward=value)
        return replace(trajectory, reward=value, grade=grade)

    async def _sample(self, request: SampleRequest, turns: int, clock: RolloutClock) -> Sample:
        """Sample one turn. A batch belongs to all of its rollouts, so it counts towards the time of none."""
        temperature = self.record["temperature"]
        with self._counted("sample"):
            if isinstance(self.engine, BatchingEngine):
                sample = await self.engine.sample_one(request, temperature=temperature)
            else:
                await self.engine.prepare()
                async with self.requests.place(turns):
                    sample = await clock.run("sample", self.engine.sample_one(request, temperature=temperature))
        self.turns += 1
        self.sampled_tokens += len(sample.ids)
        return sample

    async def _in_env(self, phase: str, work: Callable[[], ResultT], clock: RolloutClock) -> ResultT:
        with self._counted(phase):
            return await self.env_threads.run(phase, work, clock)

    @contextlib.contextmanager
    def _counted(self, phase: str) -> Iterator[None]:
        self.in_flight[phase] += 1
        try:
            yield
        finally:
            self.in_flight[phase] -= 1
            self.moved = time.monotonic()

    def _report(self) -> None:
        if self.on_progress is not None:
            self.on_progress(
                Progress(finished=len(self.done), total=len(self.rollouts), turns=self.turns, sampled_tokens=self.sampled_tokens)
            )

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


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error inside a group, or inside a group of groups."""
    inner = errors.exceptions[0]
    return first_error(inner) if isinstance(inner, BaseExceptionGroup) else inner
