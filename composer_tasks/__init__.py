"""The verifiers taskset under a name of its own: verifiers finds tasksets by the name of a top-level module."""

from __future__ import annotations

from composer_replication.integrations.verifiers import CodingTaskset

__all__ = ["CodingTaskset"]
