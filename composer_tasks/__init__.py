"""The verifiers taskset and its environment under a name of their own: verifiers finds them by the name of a top-level module."""

from __future__ import annotations

from composer_replication.integrations.verifiers import CodingTaskset, CodingTasksetEnv

__all__ = ["CodingTaskset", "CodingTasksetEnv"]
