"""The policy at work: which tasks a step practises on, their rollouts, and pass@1 on held-out tasks."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.envs.coding import CodingEnv
from composer_replication.errors import CheckpointError, SandboxError
from composer_replication.observe import mean_and_se, pass_at_1
from composer_replication.policy_gradient import has_signal
from composer_replication.rollout.collect import Progress, collect_groups
from composer_replication.rollout.protocol import Budgets, Engine
from composer_replication.tasks.store import Task
from composer_replication.tokens import ChatRenderer
from composer_replication.trainer.choosing import choose_tasks
from composer_replication.trainer.curriculum import Curriculum
from composer_replication.trainer.shaping import group_verdicts
from composer_replication.trainer.shares import TaskShare
from composer_replication.trainer.workshop import Workshop
from composer_replication.types import Group, Unscored

__all__ = ["EVAL_STEP", "Actor", "refuse_unscored", "rollout_metrics"]

EVAL_STEP, _TRACE_STEP = -1, -2
"""Step names of rollouts outside training, so that their draws are their own."""


class Actor:
    """Collects groups for one arm.

    Args:
        share: which of the tasks are this replica's, where others practise on the rest; None for all.
    """

    def __init__(
        self,
        workshop: Workshop,
        config: RunConfig,
        arm: str,
        engine: Engine,
        renderer: ChatRenderer,
        share: TaskShare | None = None,
    ) -> None:
        self.workshop = workshop
        self.config = config
        self.arm = arm
        self.engine = engine
        self.renderer = renderer
        self.rollouts = 0
        """Trajectories collected so far, evaluation included."""
        self.tokens = 0
        """Tokens sampled in them."""
        chosen = config.curriculum
        self.curriculum = Curriculum(chosen, workshop.train, config.seed) if chosen.enabled else None
        """What chooses the tasks; None: all in turn."""
        self._share = share
        self._train = list(workshop.train)
        """What is practised on: the tasks of the run, and those joined since."""

    @property
    def context_window(self) -> int:
        """Most positions the policy can attend to."""
        return self.engine.context_window

    async def practise(self, step: int, version: int) -> list[Group]:
        """The groups of one training step; with `rollout.refills`, those of further tasks for each that taught nothing."""
        rollout = self.config.rollout
        tasks, others = self._choose(step)
        groups: list[Group] = []
        for refill in range(rollout.refills + 1):
            groups += await self._collect(tasks, rollout.group_size, step=step, version=version, phase="rollout")
            missing = rollout.groups - sum(has_signal(group_verdicts(g)) for g in groups)
            tried = {g.task_id for g in groups}
            left = [t for t in others if t.spec.task_id not in tried]
            tasks = self._refill(left, step, refill, min(missing, len(left)))
            if not tasks:
                break
        if self.curriculum is not None:
            self.curriculum.learn(groups, step)
            pair = self.curriculum.to_join()
            if pair is not None:
                await self._join(*pair)
        return groups

    async def _join(self, first: Task, second: Task) -> None:
        """Make a harder task of two that are solved: seconds of tests, at most once a step. A broken box puts it off."""
        found: Task | str = ""
        try:
            found = await asyncio.to_thread(self.workshop.join, first, second)
        except SandboxError as error:
            outcome = f"not joined now: {error}"
        else:
            self._add_joined(first, second, found)
            outcome = f"joined into {found.spec.task_id}" if isinstance(found, Task) else f"not joined: {found}"
        self.workshop.terminal.note(f"{self.arm}: {first.spec.task_id} and {second.spec.task_id} are solved; {outcome}")

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a curriculum's checkpoint, with the tasks that were joined until then.

        Raises:
            CheckpointError: one of them is gone and cannot be made again.
        """
        assert self.curriculum is not None
        for first, second, task in state["joined"]:
            known = {t.spec.task_id: t for t in self._train}
            found = self.workshop.join(known[first], known[second]) if task else ""
            if task and not isinstance(found, Task):
                raise CheckpointError(
                    f"{self.arm}: the task {task}, joined of {first} and {second}, is gone and cannot be made again: {found}",
                    fix="restore its folder below tasks/ in the run directory, or give the new run another name",
                )
            self._add_joined(known[first], known[second], found)
        self.curriculum.load_state_dict(state)

    def _add_joined(self, first: Task, second: Task, found: Task | str) -> None:
        assert self.curriculum is not None
        task = found if isinstance(found, Task) else None
        self.curriculum.add_joined(first, second, task)
        if task is not None:
            self._train.append(task)

    def _choose(self, step: int) -> tuple[list[Task], list[Task]]:
        """The tasks of a step, and all that a refill may turn to."""
        train, seed, count = self._train, self.config.seed, self.config.rollout.groups
        if self.curriculum is not None:
            if self._share is not None:
                joined = train[len(self.workshop.train) :]
                train = [*self._share.of_round(self.workshop.train, step), *joined]
            return self.curriculum.choose(train, seed, step, count), train
        if self._share is not None:
            return self._share.of_step(train, step, count)
        return choose_tasks(train, seed, step, count), train

    def _refill(self, left: Sequence[Task], step: int, refill: int, count: int) -> list[Task]:
        if self.curriculum is not None:
            return self.curriculum.choose(left, self.config.seed, step, count, refill=refill + 1)
        return random.Random(f"{self.config.seed}/{step}/{refill}").sample(left, count)

    async def record_traces(self) -> list[Group]:
        """Trajectories of the starting policy on every training task (of this replica's share, if it has one), to be frozen for
        replay; kept in the run directory."""
        count = self.config.loss.replay.traces_per_task
        tasks = self.workshop.train if self._share is None else self._share.of_round(self.workshop.train, 1)
        groups = await self._collect(tasks, count, step=_TRACE_STEP, version=0, phase="record traces")
        self.workshop.run_dir.write_traces(self.arm, [t for g in groups for t in g.trajectories])
        return groups

    async def evaluate(self, version: int) -> dict[str, float]:
        """pass@1 on the held-out tasks, by the same draws every time; the trajectories are kept in the run directory.

        Empty when there are no such tasks.
        """
        if not self.workshop.held_out:
            return {}
        samples = self.config.eval.samples
        groups = await self._collect(self.workshop.held_out, samples, step=EVAL_STEP, version=version, phase="eval")
        self.workshop.run_dir.write_evaluation(self.arm, version, [t for g in groups for t in g.trajectories])
        passed, se = pass_at_1(groups)
        return {"eval/pass_at_1": passed, "eval/pass_at_1_se": se, "eval/unscored": float(len(unscored(groups)))}

    async def _collect(self, tasks: Sequence[Task], siblings: int, *, step: int, version: int, phase: str) -> list[Group]:
        rollout = self.config.rollout
        with self.workshop.terminal.phase(f"{self.arm}: {phase}", len(tasks) * siblings) as shown:

            def report(progress: Progress) -> None:
                shown.advance(progress.finished - shown.done)

            groups = await collect_groups(
                tasks,
                make_env=partial(self._make_env, practised=step > 0),
                engine=self.engine,
                renderer=self.renderer,
                budgets=Budgets(
                    turn_tokens=rollout.turn_tokens,
                    trajectory_tokens=rollout.trajectory_tokens,
                    context_tokens=rollout.context_tokens,
                    max_turns=rollout.max_turns,
                ),
                group_size=siblings,
                seed=self.config.seed,
                step=step,
                temperature=rollout.temperature,
                policy_version=version,
                cohorts=rollout.cohorts,
                env_workers=rollout.env_workers,
                on_progress=report,
                max_requests=rollout.max_requests,
                deadline_s=rollout.stall_s,
                timeout_s=rollout.timeout_s,
                arm=self.arm,
            )
        refuse_unscored(groups, f"{self.arm}: {phase}")
        self.rollouts += len(tasks) * siblings
        self.tokens += sum(t.num_sampled_tokens() for g in groups for t in g.trajectories)
        return groups

    def _make_env(self, task: Task, *, practised: bool) -> CodingEnv:
        """An episode; one that is `practised` on shows as few of the tests as the curriculum has come to."""
        if self.curriculum is None or not practised:
            return self.workshop.make_env(task)
        return self.workshop.make_env(task, self.curriculum.withheld(task.spec.task_id))


def unscored(groups: Sequence[Group]) -> list[str]:
    """The reason of every trajectory without a verdict."""
    rewards = [t.reward for g in groups for t in g.trajectories]
    return [reward.reason for reward in rewards if isinstance(reward, Unscored)]


def refuse_unscored(groups: Sequence[Group], what: str) -> None:
    """Rollouts without one verdict are none: the box is broken, and to go on would only look like training.

    Raises:
        SandboxError: every trajectory is unscored; names the first reason.
    """
    rewards = [t.reward for g in groups for t in g.trajectories]
    reasons = unscored(groups)
    if rewards and len(reasons) == len(rewards):
        raise SandboxError(
            f"{what}: none of the {len(rewards)} rollouts could be graded: {reasons[0]}",
            fix="repair what the reason names, then continue with `composer train ... --resume`",
        )


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """What the rollouts of a step say by themselves.

    Siblings are not independent, so the mean reward and its standard error are those of the groups' means, as in `pass_at_1`.
    """
    trajectories = [t for g in groups for t in g.trajectories]
    scored = [[t.reward for t in g.trajectories if not isinstance(t.reward, Unscored)] for g in groups]
    stops = Counter(t.stop_reason for t in trajectories)
    graded = [t.grade for t in trajectories if t.grade is not None]
    mean, se = mean_and_se([math.fsum(rewards) / len(rewards) for rewards in scored if rewards])
    return {
        "reward/mean": mean,
        "reward/mean_se": se,
        "reward/unscored": float(len(trajectories) - sum(map(len, scored))),
        "cheat/alarms": float(sum(grade.alarm for grade in graded)),
        "rlvr/frac_zero_std": sum(len(set(rewards)) < 2 for rewards in scored) / len(scored),
        "rollout/turns/mean": sum(len(t.turns) for t in trajectories) / len(trajectories),
        "rollout/tokens/mean": sum(t.num_sampled_tokens() for t in trajectories) / len(trajectories),
        "cost/grades_cached": sum(g.cached for g in graded) / max(1, len(graded)),
        **{f"stop/{reason.value}": count / len(trajectories) for reason, count in sorted(stops.items())},
    }
