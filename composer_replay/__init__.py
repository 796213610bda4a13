"""A run's preference pairs under a name of their own: verifiers finds tasksets, and their harness, by the name of a top-level
module."""

from __future__ import annotations

from composer_replication.recipes.prime_rl.sources import PairHarness, PairTaskset

__all__ = ["PairHarness", "PairTaskset"]
