"""The result of a run in one table: one row per arm, the same in the terminal and in the report."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import asdict, dataclass

from composer_replication.observe import files
from composer_replication.observe.run_dir import RunDir
from composer_replication.types.errors import StorageError

SUMMARY_COLUMNS = ("arm", "pass@1 ± s.e.", "rollouts", "sampled tokens", "CPU-seconds")
"""Headings of `SummaryRow.cells()`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """Results and costs of one arm. NaN and None mean not measured."""

    arm: str
    pass_at_1: float
    """pass@1 on held-out tasks, in [0, 1]."""
    pass_at_1_se: float
    """Standard error over tasks (`observe.pass_at_1`)."""
    rollouts: int | None
    tokens: int | None
    """Tokens sampled in those rollouts."""
    cpu_s: float | None
    """CPU-seconds of the trainer and of the programs in its sandboxes; not of teachers, local ones included."""

    def cells(self) -> tuple[str, ...]:
        """Return the row as text under `SUMMARY_COLUMNS`."""
        passed = "n/a" if math.isnan(self.pass_at_1) else f"{self.pass_at_1:.3f}"
        if math.isfinite(self.pass_at_1_se):
            passed += f" ± {self.pass_at_1_se:.3f}"
        return (self.arm, passed, *("n/a" if n is None else f"{n:,.0f}" for n in (self.rollouts, self.tokens, self.cpu_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The head of the report."""

    title: str
    rows: tuple[SummaryRow, ...]
    notes: tuple[str, ...]
    """Honest remarks, one paragraph each: above all, which information the arms had that the policy alone does not."""


def save_summary(run: RunDir, summary: Summary) -> None:
    """Write summary.json, from which the report can be rebuilt. Raises StorageError."""
    data = asdict(summary)
    for row in data["rows"]:
        row |= {name: None for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    files.replace_file(run.summary_path, (json.dumps(data, indent=1, allow_nan=False) + "\n").encode())


def load_summary(run: RunDir) -> Summary:
    """Read summary.json; arms it does not have yet are summed up from their metrics, and a note says so.

    Raises:
        StorageError: summary.json is damaged.
    """
    if not run.summary_path.exists():
        return _with_unfinished(run, Summary(title=run.name, rows=(), notes=()))
    with files.storage_errors(run.summary_path, "read"):
        text = run.summary_path.read_text()
    try:
        data = json.loads(text)
        rows = tuple(SummaryRow(**{**row, **{k: _nan(row[k]) for k in ("pass_at_1", "pass_at_1_se")}}) for row in data["rows"])
        saved = Summary(title=data["title"], rows=rows, notes=tuple(data["notes"]))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{run.summary_path} is damaged: {error!r}", fix="delete it: the report is then summed up from metrics.jsonl"
        ) from error
    return _with_unfinished(run, saved)


def _with_unfinished(run: RunDir, saved: Summary) -> Summary:
    """Add the last evaluation of every arm that has metrics but no row."""
    last: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for line in run.read_metrics():
        last[line.arm].update(line.values)
    unfinished = [arm for arm in last if arm not in {row.arm for row in saved.rows}]
    if not unfinished:
        return saved
    rows = tuple(
        SummaryRow(
            arm=arm,
            pass_at_1=last[arm].get("eval/pass_at_1", math.nan),
            pass_at_1_se=last[arm].get("eval/pass_at_1_se", math.nan),
            rollouts=_count(last[arm].get("rollout/total")),
            tokens=_count(last[arm].get("rollout/tokens_total")),
            cpu_s=last[arm].get("cost/cpu_s"),
        )
        for arm in unfinished
    )
    note = f"Not finished: {', '.join(unfinished)}. The table shows the last evaluation so far, from metrics.jsonl."
    return Summary(title=saved.title, rows=(*saved.rows, *rows), notes=(*saved.notes, note))


def _nan(value: float | None) -> float:
    """Convert None to NaN, which JSON lacks."""
    return math.nan if value is None else float(value)


def _count(value: float | None) -> int | None:
    return round(value) if value is not None and math.isfinite(value) else None
