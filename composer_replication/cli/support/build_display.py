"""Progress and result of a build, or of an import that reverts patches, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as EtaColumn
from rich.table import Table

from composer_replication.cli.support.options import shortened, wide_console
from composer_replication.cli.support.task_table import task_table
from composer_replication.observe.console import Console
from composer_replication.tasks.report import BuildEvent, BuildReport
from composer_replication.tasks.sources.credentials import Credential
from composer_replication.tasks.store import load_task
from composer_replication.types.errors import TaskError

_STAGES = {
    "fetching": "fetching the source",
    "installing": "installing its dependencies",
    "testing": "running its tests, twice",
    "searching": "searching what sandboxes can read for copies of its code",
    "validating": "validating",
}
_OTHERS = ("--size, --difficulty and --trivial", "--commits and --since")
"""Options that choose candidates among functions, and among commits."""
_MOST_REASONS = 12
_MOST_FAILING = 3
_LINE_CHARS = 200


class BuildDisplay(Progress):
    """Stage, bar and ETA on stderr; on anything but a terminal one line per stage.

    Args:
        each: also print a line for each candidate that is decided.
    """

    def __init__(self, *, each: bool = False) -> None:
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        eta = (TimeElapsedColumn(), TextColumn("ETA"), EtaColumn())
        super().__init__(*columns, *eta, console=console, transient=True, disable=not console.is_terminal)
        self._bar = self.add_task("starting", total=None)
        self._stage, self._each = "", each

    def show(self, event: BuildEvent) -> None:
        label = _STAGES[event.stage]
        if event.stage != self._stage and not self.console.is_terminal:
            self.console.print(label, soft_wrap=True)
        if event.stage != self._stage:
            self.reset(self._bar, total=None)
        self._stage = event.stage
        if self._each and event.last:
            line = shortened(" ".join(event.last.split()), _LINE_CHARS)
            self.console.print(line, soft_wrap=True, highlight=False, markup=False)
        if event.total:
            label = f"{label}: {event.tasks} tasks, {event.dropped} dropped"
        done, total = event.done, event.total
        if event.wanted is not None and event.wanted - event.tasks < event.total - event.done:
            done, total = event.tasks, event.wanted
        self.update(self._bar, description=label, completed=done, total=total or None)


def show_report(report: BuildReport, out: Path) -> None:
    """Print the tasks of a build, why other candidates are none, and where something looks like a credential.

    Raises:
        TaskError: the build has no task.
    """
    console = wide_console()
    if report.tasks:
        console.print(task_table([load_task(out / task_id) for task_id in report.tasks]))
    commits = report.options.get("mode") == "commits"
    print_reasons(console, report.reasons(), what="commits" if commits else "functions")
    _print_credentials(console, report.credentials)
    _print_failing(console, report.failing)
    console.print(_summary(report, out), soft_wrap=True, highlight=False)
    if not report.tasks:
        raise TaskError(
            f"no task of {report.source} could be validated ({report.candidates} candidates)",
            fix=f"see the reasons above; --package and --tests choose other code, {_OTHERS[commits]} other candidates, "
            "--task-timeout and --budget give more time",
        )


def print_reasons(console: Console, reasons: list[tuple[str, int]], *, what: str = "functions") -> None:
    """Print a table of why there is no task, and of how many of `what` that holds."""
    if not reasons:
        return
    table = Table("no task, because", what, box=box.SIMPLE_HEAD)
    for reason, count in reasons[:_MOST_REASONS]:
        table.add_row(reason, str(count))
    if len(reasons) > _MOST_REASONS:
        table.add_row("other reasons, in build.json", str(sum(count for _, count in reasons[_MOST_REASONS:])))
    console.print(table)


def _print_credentials(console: Console, found: Sequence[Credential]) -> None:
    """Print where something looks like a credential, never what."""
    if not found:
        return
    table = Table("in every task, and looks like a", "file", "line", box=box.SIMPLE_HEAD)
    for credential in found[:_MOST_REASONS]:
        table.add_row(credential.kind, credential.path, str(credential.line))
    if len(found) > _MOST_REASONS:
        table.add_row(f"and {len(found) - _MOST_REASONS} more, in build.json", "", "")
    console.print(table)


def _print_failing(console: Console, failing: Sequence[str]) -> None:
    """Print the first of the project's tests that fail by themselves, one per line."""
    if not failing:
        return
    more = f"\n  and {len(failing) - _MOST_FAILING} more, in build.json" if len(failing) > _MOST_FAILING else ""
    first = "".join(f"\n  {' '.join(line.split())}" for line in failing[:_MOST_FAILING])
    title = f"tests of the project that fail before anything is deleted, and count for nothing: {len(failing)}"
    console.print(title + first + more, soft_wrap=True, highlight=False)


def _summary(report: BuildReport, out: Path) -> str:
    tried = len(report.tasks) + len(report.dropped)
    left = {"max_tasks": " (--max reached)", "budget": " (--budget reached; build again to continue)"}.get(report.stopped, "")
    tests = f"{report.tests_passing} tests pass"
    tests += f", {report.tests_failing} fail" if report.tests_failing else ""
    tests += f", {report.tests_flaky} are flaky" if report.tests_flaky else ""
    forgeable = f"{report.forgeable} of {len(report.tasks)} tasks are forgeable: runs leave them out by default\n"
    notes = "".join(f"{note}\n" for note in report.notes)
    impossible = f"{report.impossible} of {len(report.tasks)} tasks are impossible: no program is rewarded for them\n"
    return (
        f"{len(report.tasks)} tasks from {tried} of {report.candidates} candidates{left} in {report.seconds:g} s; {tests}\n"
        f"{notes}{forgeable if report.forgeable else ''}{impossible if report.options.get('impossible') else ''}"
        f"licence {report.licence}; {report.isolation}\n{out!s}"
    )
