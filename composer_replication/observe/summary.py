"""The result of a run in one table: one row per arm, the same in the terminal and in the report."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import asdict, dataclass

from composer_replication.errors import StorageError
from composer_replication.observe import files
from composer_replication.observe.run_dir import RunDir

__all__ = ["SUMMARY_COLUMNS", "Summary", "SummaryRow", "load_summary", "save_summary"]

SUMMARY_COLUMNS = ("arm", "pass@1 ± s.e.", "rollouts", "sampled tokens", "CPU-seconds")
"""Headings of `SummaryRow.cells()`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """What one arm reached and what it spent. NaN and None mean not measured."""

    arm: str
    pass_at_1: float
    """On held-out tasks, in [0, 1]."""
    pass_at_1_se: float
    """Standard error over tasks (`observe.pass_at_1`)."""
    rollouts: int | None
    tokens: int | None
    """Tokens sampled in those rollouts."""
    cpu_s: float | None
    """CPU-seconds of the trainer and its sandboxes."""

    def cells(self) -> tuple[str, ...]:
        """The row as text under `SUMMARY_COLUMNS`."""
        passed = "n/a" if math.isnan(self.pass_at_1) else f"{self.pass_at_1:.3f}"
        if math.isfinite(self.pass_at_1_se):
            passed += f" ± {self.pass_at_1_se:.3f}"
        return (self.arm, passed, *("n/a" if n is None else f"{n:,.0f}" for n in (self.rollouts, self.tokens, self.cpu_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the report says first."""

    title: str
    rows: tuple[SummaryRow, ...]
    notes: tuple[str, ...]
    """Honest remarks, one paragraph each: above all, which information the arms had that the policy alone does not."""


def save_summary(run: RunDir, summary: Summary) -> None:
    """Write summary.json, from which the report can be rebuilt. Raises StorageError."""
    files.replace_file(run.summary_path, (json.dumps(asdict(summary), indent=1) + "\n").encode())


def load_summary(run: RunDir) -> Summary:
    """Read summary.json; a run that has none yet is summed up from its metrics.

    Raises:
        StorageError: summary.json is damaged.
    """
    if not run.summary_path.exists():
        return _from_metrics(run)
    with files.storage_errors(run.summary_path, "read"):
        text = run.summary_path.read_text()
    try:
        data = json.loads(text)
        rows = tuple(SummaryRow(**row) for row in data["rows"])
        return Summary(title=data["title"], rows=rows, notes=tuple(data["notes"]))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{run.summary_path} is damaged: {error!r}", fix="delete it: the report is then summed up from metrics.jsonl"
        ) from error


def _from_metrics(run: RunDir) -> Summary:
    """The last evaluation of each arm, and what its steps so far add up to."""
    last: defaultdict[str, dict[str, float]] = defaultdict(dict)
    spent: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in run.read_metrics():
        last[line.arm].update(line.values)
        for name in line.values.keys() & {"rollout/trajectories", "rollout/tokens", "cost/cpu_s"}:
            spent[line.arm][name] += line.values[name]
    rows = tuple(
        SummaryRow(
            arm=arm,
            pass_at_1=values.get("eval/pass_at_1", math.nan),
            pass_at_1_se=values.get("eval/pass_at_1_se", math.nan),
            rollouts=_count(spent[arm], "rollout/trajectories"),
            tokens=_count(spent[arm], "rollout/tokens"),
            cpu_s=spent[arm].get("cost/cpu_s"),
        )
        for arm, values in last.items()
    )
    note = "This run has not finished: the table shows the last evaluation of each arm in metrics.jsonl."
    return Summary(title=run.name, rows=rows, notes=(note,))


def _count(totals: defaultdict[str, float], name: str) -> int | None:
    return round(totals[name]) if name in totals and math.isfinite(totals[name]) else None
