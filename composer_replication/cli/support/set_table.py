"""Building a set of tasks on the command line: a line for each source as it is done, and a table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from composer_replication.cli.support.options import shortened, wide_console
from composer_replication.observe.console import Console, echo
from composer_replication.tasks.report import BuildOptions
from composer_replication.tasks.sets.build_set import build_set
from composer_replication.tasks.sets.report import SetReport, SourceOutcome
from composer_replication.tasks.sources.fetch import left_open
from composer_replication.types.errors import TaskError

_EXIT_SOME_REFUSED = 1
_REASON_CHARS = 300


def build_and_show_set(sources: Sequence[str], out: Path, options: BuildOptions, *, retry: bool) -> None:
    """Build a set, and print a line for each source and a table of all.

    Raises:
        Exit: with 1, where some sources have no tasks.
        TaskError: none has any.
        ConfigError, StorageError: as `build_set`.
    """
    if what := next(filter(None, (left_open(source, installs=options.runs_programs) for source in sources)), ""):
        echo(f"not confined: {what}", err=True)
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("sources"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("sources", total=len(sources))

        def tell(outcome: SourceOutcome) -> None:
            bar.advance(shown)
            console.print(_line(outcome), soft_wrap=True, highlight=False, markup=False)

        report = build_set(sources, out, options, retry=retry, progress=tell)
    wide_console().print(set_table(report))
    _summarise(report, out)


def set_table(report: SetReport) -> Table:
    """Return a table with a row for each source: its tasks, or why it has none."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("source", overflow="fold")
    for name in ("tasks", "forgeable", "candidates"):
        table.add_column(name, justify="right")
    table.add_column("why not, and what to do", overflow="fold")
    for outcome in report.sources:
        numbers = (str(number) if outcome.candidates else "" for number in (outcome.tasks, outcome.forgeable, outcome.candidates))
        why = f"{outcome.reason}; {outcome.fix}" if outcome.fix else outcome.reason
        table.add_row(outcome.source, *numbers, shortened(" ".join(why.split()), _REASON_CHARS))
    return table


def _line(outcome: SourceOutcome) -> str:
    what = f"{_counted(outcome.tasks)} from {outcome.candidates} candidates" if outcome.tasks else outcome.reason
    return f"{outcome.source}: {shortened(' '.join(what.split()), _REASON_CHARS)}"


def _counted(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"


def _summarise(report: SetReport, out: Path) -> None:
    refused = sum(not outcome.tasks for outcome in report.sources)
    if left := len(report.left_out):
        what = "1 task is left out: it deletes" if left == 1 else f"{left} tasks are left out: they delete"
        echo(f"{what} code that another task of the set deletes (set.json names both)")
    built = len(report.sources) - refused
    echo(f"{_counted(report.tasks)} from {built} of {len(report.sources)} sources\n{out}")
    if not built:
        raise TaskError(f"none of {len(report.sources)} sources could be built", fix="see the reasons above")
    if refused:
        raise typer.Exit(_EXIT_SOME_REFUSED)
