"""`composer tasks`: build feature-deletion tasks from a repository, list them, show one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as EtaColumn
from rich.syntax import Syntax
from rich.table import Table

from composer_replication.errors import TaskError
from composer_replication.sandbox import SandboxKind
from composer_replication.tasks.build import build_tasks
from composer_replication.tasks.report import BuildEvent, BuildOptions, BuildReport
from composer_replication.tasks.store import Task, load_task, load_tasks

__all__ = ["app"]

app = typer.Typer(help="Build, list and show feature-deletion tasks.", no_args_is_help=True)

_STAGES = {
    "fetching": "fetching the source",
    "installing": "installing its dependencies",
    "testing": "running its tests, twice",
    "validating": "validating",
}
_MOST_REASONS = 12
_PIPED_WIDTH = 160


@app.command()
def build(
    source: Annotated[str, typer.Argument(help="A folder, pypi:NAME==VERSION, or a git URL (URL@REV).")],
    out: Annotated[Path, typer.Option(help="Folder for the tasks; the same command continues an interrupted build.")],
    max_tasks: Annotated[int | None, typer.Option("--max", min=1, help="Stop after this many tasks.")] = None,
    group_size: Annotated[int, typer.Option(min=1, help="Delete up to this many functions together; sizes alternate.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the order of candidates and of samples of tests.")] = 0,
    python: Annotated[Path | None, typer.Option(help="Interpreter for the tests, with what they import.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Install the declared dependencies into OUT/.venv.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Candidates validated at once.")] = 2,
    timeout: Annotated[float, typer.Option(help="Seconds for one run of the whole test suite.")] = 300.0,
    task_timeout: Annotated[float, typer.Option(help="Seconds for one run of a task's tests.")] = 60.0,
    budget: Annotated[float | None, typer.Option(help="Begin no candidate after this many seconds.")] = None,
    pass_to_pass: Annotated[int, typer.Option(min=0, help="Most tests per task that must go on passing.")] = 50,
    impossible: Annotated[float, typer.Option(help="Share of tasks made impossible: passing one is a cheat alarm.")] = 0.0,
    drop_docstrings: Annotated[bool, typer.Option("--drop-docstrings", help="Delete docstrings with the bodies.")] = False,
    package: Annotated[list[str] | None, typer.Option(help="Path of a package or module to delete from; repeatable.")] = None,
    tests: Annotated[list[str] | None, typer.Option(help="Path of tests; repeatable.")] = None,
    sandbox: Annotated[SandboxKind, typer.Option(help="Where untrusted code runs.")] = "auto",
) -> None:
    """Turn a repository with tests into tasks: delete features whose tests can verify that they are back.

    Exits with 3 when no task could be validated.
    """
    options = BuildOptions(
        max_tasks=max_tasks,
        group_size=group_size,
        seed=seed,
        python=python,
        install=install,
        jobs=jobs,
        timeout_s=timeout,
        task_timeout_s=task_timeout,
        budget_s=budget,
        pass_to_pass_cap=pass_to_pass,
        impossible=impossible,
        keep_docstring=not drop_docstrings,
        packages=tuple(package or ()),
        tests=tuple(tests or ()),
        sandbox=sandbox,
    )
    with _Display() as display:
        report = build_tasks(source, out, options, progress=display.show)
    console = _console()
    if report.tasks:
        console.print(_table([load_task(out / task_id) for task_id in report.tasks]))
    _print_reasons(console, report)
    console.print(_summary(report, out), soft_wrap=True, highlight=False)
    if not report.tasks:
        raise TaskError(
            f"no task of {report.source} could be validated ({report.candidates} candidates)",
            fix="see the reasons above; --package and --tests choose other code, --task-timeout and --budget give more time",
        )


@app.command("list")
def list_tasks(folder: Annotated[Path, typer.Argument(help="Folder of tasks.")]) -> None:
    """List the tasks of a folder; every file is checked against its manifest."""
    _console().print(_table(load_tasks(folder)))


@app.command()
def show(task: Annotated[Path, typer.Argument(help="Folder of one task, FOLDER/TASK.")]) -> None:
    """Show one task: what is asked, what was deleted, its tests, and the solution."""
    loaded = load_task(task)
    spec, console = loaded.spec, _console()
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    rows = {
        "task": spec.task_id,
        "asks": spec.instruction,
        "source": spec.source,
        "deleted": ", ".join(f"{d.qualname} ({d.path}, {d.lines} lines)" for d in spec.deleted),
        "editable": ", ".join(spec.editable),
        "time limit": f"{spec.test_timeout_s:g} s",
        "fail-to-pass": f"{len(spec.fail_to_pass)}: {_first(spec.fail_to_pass)}",
        "pass-to-pass": f"{len(spec.pass_to_pass)}: {_first(spec.pass_to_pass)}" if spec.pass_to_pass else "0",
        "hidden checks": _hidden(loaded),
        "made with": ", ".join(f"{name} {value}" for name, value in loaded.provenance.items()),
    }
    for name, value in rows.items():
        facts.add_row(name, escape(value))
    console.print(facts)
    console.print(Syntax(loaded.gold_patch(), "diff", background_color="default", word_wrap=True))


def _console() -> Console:
    """Stdout; wide where it is not a terminal, so that ids stay whole."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPED_WIDTH)


def _first(ids: tuple[str, ...], count: int = 3) -> str:
    return ", ".join(ids[:count]) + (", ..." if len(ids) > count else "")


def _hidden(task: Task) -> str:
    if task.spec.impossible:
        return "none: the task is impossible, and passing it an alarm"
    calls, anti_tests = task.spec.hidden.calls, task.spec.hidden.anti_tests
    new = sum(not call.seen for call in calls)
    return f"{len(calls)} held-out calls ({new} with arguments no test uses), {len(anti_tests)} anti-tests"


class _Display:
    """Stage, bar and ETA on stderr; on anything but a terminal one line per stage."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        eta = (TimeElapsedColumn(), TextColumn("ETA"), EtaColumn())
        self._progress = Progress(*columns, *eta, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._bar: TaskID = self._progress.add_task("starting", total=None)
        self._stage = ""

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: BuildEvent) -> None:
        label = _STAGES[event.stage]
        if event.stage != self._stage and not self._console.is_terminal:
            self._console.print(label, soft_wrap=True)
        if event.stage != self._stage:
            self._progress.reset(self._bar, total=None)
        self._stage = event.stage
        if event.total:
            label = f"{label}: {event.tasks} tasks, {event.dropped} dropped"
        done, total = event.done, event.total
        if event.wanted is not None and event.wanted - event.tasks < event.total - event.done:
            done, total = event.tasks, event.wanted
        self._progress.update(self._bar, description=label, completed=done, total=total or None)


def _table(tasks: list[Task]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("task", no_wrap=True)
    table.add_column("deleted", overflow="fold")
    for name in ("lines", "fail-to-pass", "pass-to-pass"):
        table.add_column(name, justify="right")
    for task in tasks:
        spec = task.spec
        names = ", ".join(d.qualname for d in spec.deleted)
        lines = sum(d.lines for d in spec.deleted)
        numbers = (lines, len(spec.fail_to_pass), len(spec.pass_to_pass))
        table.add_row(escape(spec.task_id), escape(names), *map(str, numbers))
    return table


def _print_reasons(console: Console, report: BuildReport) -> None:
    reasons = report.reasons()
    if not reasons:
        return
    table = Table("no task, because", "functions", box=box.SIMPLE_HEAD)
    for reason, count in reasons[:_MOST_REASONS]:
        table.add_row(escape(reason), str(count))
    if len(reasons) > _MOST_REASONS:
        table.add_row("other reasons, in build.json", str(sum(count for _, count in reasons[_MOST_REASONS:])))
    console.print(table)


def _summary(report: BuildReport, out: Path) -> str:
    tried = len(report.tasks) + len(report.dropped)
    left = {"max_tasks": " (--max reached)", "budget": " (--budget reached; build again to continue)"}.get(report.stopped, "")
    tests = f"{report.tests_passing} tests pass"
    tests += f", {report.tests_failing} fail" if report.tests_failing else ""
    tests += f", {report.tests_flaky} are flaky" if report.tests_flaky else ""
    return (
        f"{len(report.tasks)} tasks from {tried} of {report.candidates} candidates{left} in {report.seconds:g} s; {tests}\n"
        f"{escape(report.isolation)}\n{escape(str(out))}"
    )
