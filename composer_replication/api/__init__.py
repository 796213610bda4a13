"""The Python interface: what the `composer` commands do, as functions. The package root exports these names."""

from __future__ import annotations

from composer_replication.api.rollouts import Evaluation, evaluate, rollout
from composer_replication.api.runs import Run, load_run
from composer_replication.api.tasks import build_tasks, grade, load_tasks
from composer_replication.api.training import train

__all__ = ["Evaluation", "Run", "build_tasks", "evaluate", "grade", "load_run", "load_tasks", "rollout", "train"]
