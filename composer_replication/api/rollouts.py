"""Let a policy work on tasks, and measure how well it does."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from composer_replication.api.policies import REQUIRED, open_policy
from composer_replication.api.rollout_options import RolloutOptions
from composer_replication.envs import CodingEnv, TestCache
from composer_replication.envs.oracle import sound_tasks
from composer_replication.observe import mean_and_se, pass_at_1
from composer_replication.rollouts import Progress, collect_groups
from composer_replication.rollouts.collect import groups_at_once
from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.grading.grade import GradeCache
from composer_replication.tasks.interpreters import interpreters_of
from composer_replication.tasks.store import Task
from composer_replication.tasks.strength import load_strong_tasks, strong_tasks
from composer_replication.trainer.waiting import wait_for
from composer_replication.types import Group, Trajectory, Unscored

_PER_COLLECTION = 64
"""Most trajectories collected, and then handed on, at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How a policy did."""

    policy: str
    pass_at_1: float
    """Mean over tasks of the share of rollouts that passed, impossible tasks left out; NaN when none was scored."""
    pass_at_1_se: float
    """Standard error over tasks."""
    rows: list[dict[str, Any]]
    """One per task: `task_id`, `reward`, `unscored`, `stop_reasons`, `turns`, `sampled_tokens`, `why`, `impossible`."""
    trajectories: list[Trajectory] = field(repr=False)
    isolation: str = ""
    """Isolation that separated the agent from this machine."""


def rollout(
    tasks: Sequence[Task] | str | os.PathLike[str], policy: str, *, group_size: int = 1, **options: Any
) -> list[Trajectory]:
    """Let a policy work on tasks, `group_size` times on each, and return what it did.

    Args:
        tasks: tasks, or their folder.
        policy: a model's folder or Hugging Face id; or `oracle` (the solution), `noop` (submit at once), `random`; or
            `teacher:NAME`, a model behind an endpoint.
        options: fields of `RolloutOptions`.

    Raises:
        ConfigError: there is no such policy or option.
        TaskError, SandboxError: tests do not run here.
        TeacherError: a teacher could not be asked, or the cap is reached.
    """
    chosen = RolloutOptions(**options)
    groups, _ = rollout_groups(_tasks(tasks, forgeable=chosen.forgeable), policy, group_size, chosen)
    return [t for g in groups for t in g.trajectories]


def evaluate(tasks: Sequence[Task] | str | os.PathLike[str], policy: str, *, samples: int = 1, **options: Any) -> Evaluation:
    """Measure pass@1 of a policy on tasks, from `samples` rollouts of each. Arguments and errors are those of `rollout`."""
    chosen = RolloutOptions(**options)
    loaded = _tasks(tasks, forgeable=chosen.forgeable)
    groups, isolation = rollout_groups(loaded, policy, samples, chosen)
    return evaluation_of(policy, loaded, groups, isolation)


def evaluation_of(policy: str, tasks: Sequence[Task], groups: Sequence[Group], isolation: str) -> Evaluation:
    """Return what groups of rollouts amount to."""
    possible = {task.spec.task_id for task in tasks if not task.spec.impossible}
    passed, se = pass_at_1([group for group in groups if group.task_id in possible])
    return Evaluation(
        policy=policy,
        pass_at_1=passed,
        pass_at_1_se=se,
        rows=[{**_row(group), "impossible": group.task_id not in possible} for group in groups],
        trajectories=[t for g in groups for t in g.trajectories],
        isolation=isolation,
    )


def rollout_groups(
    tasks: Sequence[Task],
    policy: str,
    group_size: int,
    options: RolloutOptions,
    *,
    on_progress: Callable[[int], None] | None = None,
    on_groups: Callable[[list[Group]], None] | None = None,
    on_isolation: Callable[[str], None] | None = None,
) -> tuple[list[Group], str]:
    """Collect groups, a bounded number of rollouts at a time, and return them with what separated them from this machine.

    Args:
        on_progress: called with the number of rollouts that are done.
        on_groups: called with each part as soon as it is there.
        on_isolation: called before the first rollout with what separates it from this machine.
    """
    box = open_sandbox(options.sandbox)
    isolation = box.isolation.summary()
    if on_isolation is not None:
        on_isolation(isolation)
    pythons = interpreters_of(tasks, options.python, options.sandbox)
    tasks = [task for task in tasks if task.spec.task_id in pythons]
    if policy not in REQUIRED:  # those that must solve or fail every task show more
        tasks = sound_tasks(tasks, pythons, sandbox=box)
    shared: dict[str, Any] = {"sandbox": box, "grade_cache": GradeCache(), "test_cache": TestCache(), "toolset": options.toolset}

    def make_env(task: Task) -> CodingEnv:
        return CodingEnv(task, python=pythons[task.spec.task_id], **shared)

    return wait_for(_collected(tasks, policy, group_size, options, make_env, on_progress, on_groups)), isolation


async def _collected(
    tasks: Sequence[Task],
    policy: str,
    group_size: int,
    options: RolloutOptions,
    make_env: Callable[[Task], CodingEnv],
    on_progress: Callable[[int], None] | None,
    on_groups: Callable[[list[Group]], None] | None,
) -> list[Group]:
    budgets = {name: getattr(options, name) for name in ("turn_tokens", "trajectory_tokens", "context_tokens", "max_turns")}
    groups: list[Group] = []
    size = groups_at_once(group_size, _PER_COLLECTION if options.engine == "transformers" else None, len(tasks))
    async with open_policy(policy, tasks, options) as opened:
        for start in range(0, len(tasks), size):

            def report(progress: Progress, before: int = start * group_size) -> None:
                if on_progress is not None:
                    on_progress(before + progress.finished)

            part = await collect_groups(
                tasks[start : start + size],
                make_env=make_env,
                engine=opened.engine,
                renderer=opened.renderer,
                budgets=replace(opened.budgets, **{k: v for k, v in budgets.items() if v is not None}),
                group_size=group_size,
                seed=options.seed,
                step=0,
                temperature=options.temperature,
                policy_version=0,
                env_workers=options.env_workers,
                max_requests=options.max_requests,
                timeout_s=options.timeout_s,
                on_progress=report,
            )
            groups += part
            if on_groups is not None:
                on_groups(part)
    return groups


def _tasks(given: Sequence[Task] | str | os.PathLike[str], *, forgeable: bool) -> list[Task]:
    if isinstance(given, str | os.PathLike):
        return load_strong_tasks(Path(given), forgeable=forgeable)
    return strong_tasks(given, "the list", forgeable=forgeable)


def _row(group: Group) -> dict[str, Any]:
    trajectories = group.trajectories
    scored = [t.reward for t in trajectories if not isinstance(t.reward, Unscored)]
    reasons = itertools.chain.from_iterable([t.reward.reason] if isinstance(t.reward, Unscored) else [] for t in trajectories)
    graded = next((t.grade for t in trajectories if t.grade is not None and t.grade.reward != 1.0), None)
    mean = mean_and_se(scored)[0]
    return {
        "task_id": group.task_id,
        "reward": mean if math.isfinite(mean) else None,
        "unscored": len(trajectories) - len(scored),
        "stop_reasons": dict(sorted(Counter(t.stop_reason.value for t in trajectories).items())),
        "turns": sum(len(t.turns) for t in trajectories),
        "sampled_tokens": sum(t.num_sampled_tokens() for t in trajectories),
        "why": next(reasons, graded.reasons[0] if graded is not None and graded.reasons else ""),
    }
