"""A replica's share of the tasks that one replica alone would train on in a step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from composer_replication.envs.source import AnyTask
from composer_replication.trainer.sampling.task_sampler import choose_tasks


@dataclass(frozen=True, slots=True)
class TaskShard:
    """One replica's part of the tasks. It follows from the step, so that a resumed replica continues with its own tasks."""

    rank: int
    world_size: int
    seed: int
    """The job's: the same in all replicas."""
    window: int
    """Steps of a round."""

    def of_step(self, tasks: Sequence[AnyTask], step: int, count: int) -> tuple[list[AnyTask], list[AnyTask]]:
        """Return this replica's `count` tasks of a step (1-based), and spare tasks that no other replica uses in this step.

        No task is taken twice in a round, by whatever replica; where a round needs more tasks than there are, in no so many steps
        as they last for, counted from the first.

        Raises:
            ValueError: there are fewer tasks than a step of all replicas takes.
        """
        whole = count * self.world_size
        steps = max(1, min(self.window, len(tasks) // whole))
        block, at = divmod(step - 1, steps)
        taken = choose_tasks(range(len(tasks)), self.seed, block + 1, steps * whole)
        mine = taken[at * whole : (at + 1) * whole][self.rank :: self.world_size]
        spare = sorted(set(range(len(tasks))) - set(taken))
        random.Random(f"{self.seed}/{block}/spare").shuffle(spare)
        others = spare[at * self.world_size + self.rank :: steps * self.world_size]
        return [tasks[i] for i in mine], [tasks[i] for i in others]

    def of_round(self, tasks: Sequence[AnyTask], step: int) -> list[AnyTask]:
        """Return this replica's part of all tasks in the round of a step, for a curriculum to choose from."""
        order = list(tasks)
        random.Random(f"{self.seed}/{(step - 1) // self.window}/round").shuffle(order)
        return order[self.rank :: self.world_size]
