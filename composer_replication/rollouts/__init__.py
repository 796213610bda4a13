"""Rolling out: engines that sample turns, the multi-turn loop, and the collection of groups.

Importing this package imports no torch; `composer_replication.rollouts.transformers_engine` does.
"""

from __future__ import annotations

from composer_replication.rollouts.batching import BatchingEngine
from composer_replication.rollouts.collect import Progress, collect_groups
from composer_replication.rollouts.protocol import AsyncEngine, Budgets, Engine, Env, Sample, SampleRequest
from composer_replication.rollouts.scripted import RandomEngine, ScriptedEngine

__all__ = [
    "AsyncEngine",
    "BatchingEngine",
    "Budgets",
    "Engine",
    "Env",
    "Progress",
    "RandomEngine",
    "Sample",
    "SampleRequest",
    "ScriptedEngine",
    "collect_groups",
]
