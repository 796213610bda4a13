"""The work of generators: new groups, as far as the limit on staleness allows, and evaluations and traces when they are due.

The staleness of a group in a step is the number of optimizer steps between the weights that sampled it and those the step starts
from: a group of policy version v that step s trains on (s = 1 is the first) has staleness s - 1 - v. It is never above
`max_staleness`: such groups are dropped and counted, and others are issued for them.

No more groups are issued than the present and the next `max_staleness` steps can train on. So where groups finish in the order
they were issued none is too old, and `max_staleness = 0` is synchronous training: the groups of a step are issued when the step
before it is done.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from composer_replication.config import RunConfig
from composer_replication.recipes.mesh.generator import Order
from composer_replication.recipes.mesh.ledger import GroupLedger
from composer_replication.tasks.store import Task
from composer_replication.trainer.sampling.task_sampler import choose_tasks
from composer_replication.types import Group


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """The limit on staleness for one arm."""

    groups: int
    """Groups per step."""
    steps: int
    """Optimizer steps of the arm."""
    max_staleness: int

    def limit(self, dropped: int, version: int) -> int:
        """Return the number below which groups may be issued while the policy has this version."""
        return min(version + 1 + self.max_staleness, self.steps) * self.groups + dropped

    def too_old(self, waiting: Mapping[int, int], step: int) -> list[int]:
        """Return the numbers of finished groups (number -> policy version) that are too old for this step and all later ones."""
        return sorted(number for number, version in waiting.items() if step - 1 - version > self.max_staleness)

    def choose(self, waiting: Mapping[int, int], step: int) -> list[int] | None:
        """Return the groups that the step trains on: oldest policy first, then in order of issue. None while they are too few."""
        old = set(self.too_old(waiting, step))
        order = sorted((version, number) for number, version in waiting.items() if number not in old)
        return sorted(number for _, number in order[: self.groups]) if len(order) >= self.groups else None


@dataclass(slots=True, eq=False)
class Job:
    """An order that was handed out or waits to be."""

    order: Order
    numbers: tuple[int, ...] = ()
    """Numbers of its groups in the ledger; empty for an evaluation and for traces."""
    result: asyncio.Future[list[Group]] | None = None
    """The groups of an evaluation or of traces; None for training."""


class Work:
    """The orders of one arm. Every order is in the ledger before it is handed out."""

    def __init__(self, config: RunConfig, tasks: Sequence[Task], ledger: GroupLedger) -> None:
        self.config, self.ledger = config, ledger
        self.pace = StalenessRule(config.rollout.groups, config.steps, config.substrate.max_staleness)
        self._tasks = tasks
        self._urgent: deque[Job] = deque()
        self._named = 0

    def pick(self, version: int) -> Job | None:
        """Return the next order for the policy of this version; None when a newer version is needed first."""
        limit = self.pace.limit(len(self.ledger.dropped), version)
        for job in self._urgent:
            if not job.numbers or job.numbers[-1] < limit:
                self._urgent.remove(job)
                return job
        if self.ledger.next >= limit:
            return None
        numbers = self._in_orders(range(self.ledger.next, limit))[0]
        self.ledger.issue(numbers, version)
        return Job(self._training_order(numbers), numbers)

    def again(self, job: Job, version: int) -> None:
        """Put a failed job first in the queue; none of its groups count."""
        if job.numbers:
            self.ledger.issue(job.numbers, version)
        job.order = self._order(job.order.task_ids, job.order.siblings, job.order.step)
        self._urgent.appendleft(job)

    def resume(self, version: int) -> None:
        """Queue the groups that an earlier driver had issued and never received."""
        lost = self.ledger.unfinished
        if lost:
            self.ledger.issue(lost, version)
        self._urgent.extend(Job(self._training_order(numbers), numbers) for numbers in self._in_orders(lost))

    def outside(self, task_ids: Sequence[str], siblings: int, step: int) -> list[Job]:
        """Queue groups that are not trained on, before all training groups, and return their jobs in the tasks' order."""
        share = math.ceil(len(task_ids) / self.config.substrate.generators)
        jobs = []
        for start in range(0, len(task_ids), share):
            order = self._order(tuple(task_ids[start : start + share]), siblings, step)
            jobs.append(Job(order, result=asyncio.get_running_loop().create_future()))
        self._urgent.extend(jobs)
        return jobs

    def _in_orders(self, numbers: Iterable[int]) -> list[tuple[int, ...]]:
        """Return the groups of one step together, in equal shares for the generators."""
        groups = self.pace.groups
        share = math.ceil(groups / self.config.substrate.generators)
        orders: list[tuple[int, ...]] = []
        for number in numbers:
            if orders and len(orders[-1]) < share and orders[-1][-1] // groups == number // groups:
                orders[-1] += (number,)
            else:
                orders.append((number,))
        return orders

    def _training_order(self, numbers: tuple[int, ...]) -> Order:
        step = numbers[0] // self.pace.groups + 1
        tasks = choose_tasks(self._tasks, self.config.seed, step, self.pace.groups)
        names = tuple(tasks[number % self.pace.groups].spec.task_id for number in numbers)
        return self._order(names, self.config.rollout.group_size, step)

    def _order(self, task_ids: tuple[str, ...], siblings: int, step: int) -> Order:
        self._named += 1
        return Order(name=str(self._named), task_ids=task_ids, siblings=siblings, step=step)
