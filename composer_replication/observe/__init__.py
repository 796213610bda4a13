"""A run's records and their display: run directory, metrics, terminal, report."""

from __future__ import annotations

from composer_replication.observe.metrics import deterministic, mean_and_se, pass_at_1, usd
from composer_replication.observe.run_dir import MetricsLine, RunDir, trajectory_row
from composer_replication.observe.terminal import Phase, Terminal

__all__ = ["MetricsLine", "Phase", "RunDir", "Terminal", "deterministic", "mean_and_se", "pass_at_1", "trajectory_row", "usd"]
