"""Our environment as a harness under a name of its own: verifiers finds harnesses by the name of a top-level module."""

from __future__ import annotations

from composer_replication.recipes.prime_rl.sources import ComposerAgent

__all__ = ["ComposerAgent"]
