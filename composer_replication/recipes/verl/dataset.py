"""verl's data set: a row for every task of every step, in the order of the steps, with the pairs of its step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from composer_replication.config import RunConfig
from composer_replication.tasks.store import Task
from composer_replication.trainer.pairs.held import pairs_of_step
from composer_replication.trainer.sampling.task_sampler import choose_tasks
from composer_replication.types import Pair, to_json


def training_rows(config: RunConfig, tasks: Sequence[Task], pairs: Sequence[Pair]) -> Iterator[dict[str, Any]]:
    """Yield the rows of all steps: the tasks that the local trainer would take, which share the step's pairs."""
    count = config.rollout.groups
    for step in range(1, config.steps + 1):
        taken = pairs_of_step(pairs, step, config.loss.replay.pairs_per_step)
        for place, task in enumerate(choose_tasks(tasks, config.seed, step, count)):
            yield _row((step - 1) * count + place, task, "train", taken[place::count])


def evaluation_rows(tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
    """Yield one row for every held-out task."""
    for place, task in enumerate(tasks):
        yield _row(place, task, "held_out", ())


def _row(index: int, task: Task, split: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": task.spec.instruction}],  # verl wants one; the environment opens the episode
        "data_source": "composer",
        "agent_name": "composer",
        "reward_model": {"style": "rule", "ground_truth": ""},  # likewise: the agent loop grades
        "extra_info": {"index": index},
        "task_id": task.spec.task_id,
        "split": split,
        "pairs": json.dumps(to_json(tuple(pairs))),
    }


def write_rows(path: Path, rows: Iterator[dict[str, Any]]) -> Path:
    """Write rows as parquet and return the path."""
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path
