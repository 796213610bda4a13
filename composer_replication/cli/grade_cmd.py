"""`composer grade`: the verdict on any tree."""

from __future__ import annotations

import filecmp
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from composer_replication.api.tasks import grade as grade_workspace
from composer_replication.cli.support.options import SandboxOption
from composer_replication.observe.console import Console, echo
from composer_replication.tasks.store import load_task
from composer_replication.types import GradeReport, Outcome, Unscored, to_json

EXIT_ZERO_REWARD = 10
EXIT_UNSCORED = 4
_MOST_PATHS = 10


def grade(
    task: Annotated[Path, typer.Argument(help="Folder of the task.")],
    workspace: Annotated[Path, typer.Option(help="Root of the tree to grade, e.g. an edited copy of TASK/repo.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    python: Annotated[Path | None, typer.Option(help="Interpreter for the tests; the one the task was built with.")] = None,
    sandbox: SandboxOption = "auto",
) -> None:
    """Grade a workspace: its allow-listed files are copied into a fresh tree, and the task's own tests decide.

    Exits with 0 for reward 1, with 10 for reward 0, and with 4 when the sandbox broke and there is no reward.
    """
    loaded = load_task(task)
    report = grade_workspace(loaded, workspace, python=python, sandbox=sandbox)
    if as_json:
        echo(json.dumps(to_json(report), indent=1))
    else:
        _print(Console(), report, _describe_rejected(report.rejected, loaded.repo, workspace))
    if isinstance(report.reward, Unscored):
        raise typer.Exit(EXIT_UNSCORED)
    if report.reward != 1.0:
        raise typer.Exit(EXIT_ZERO_REWARD)


def _describe_rejected(rejected: Sequence[str], tree: Path, workspace: Path) -> list[str]:
    """Describe what was done to each path that is not graded; the task's own files first, and a renamed file once."""
    gone = [path for path in rejected if not os.path.lexists(workspace / path)]
    new = [path for path in rejected if not os.path.lexists(tree / path)]
    described = [path for path in rejected if path not in gone and path not in new]
    for path in gone:
        moved = next((other for other in new if _same(tree / path, workspace / other)), None)
        described.append(f"{path} (deleted)" if moved is None else f"{path} (renamed to {moved})")
        new = [other for other in new if other != moved]
    return [*described, *(f"{path} (new)" for path in new)]


def _same(old: Path, new: Path) -> bool:
    try:
        return new.is_file() and not new.is_symlink() and filecmp.cmp(old, new, shallow=False)
    except OSError:
        return False


def _print(console: Console, report: GradeReport, rejected: Sequence[str]) -> None:
    table = Table("test", "outcome", box=box.SIMPLE_HEAD)
    for test_id, outcome in report.outcomes.items():
        colour = "green" if outcome is Outcome.PASSED else "red"
        table.add_row(test_id, Text(outcome, style=colour))
    console.print(table)
    for reason in report.reasons:
        console.print(reason, soft_wrap=True, highlight=False)
    for alarm in report.alarms:
        console.print(f"alarm: {alarm}", soft_wrap=True, highlight=False, style="yellow")
    if rejected:
        left = len(rejected) - _MOST_PATHS
        paths = ", ".join(rejected[:_MOST_PATHS]) + (f" and {left} more (--json has all)" if left > 0 else "")
        text = f"changed but not graded (not on the allow list; the task's own files count): {paths}"
        console.print(text, soft_wrap=True, highlight=False)
    console.print(report.isolation, soft_wrap=True, highlight=False)
    reward = "none (unscored)" if isinstance(report.reward, Unscored) else f"{report.reward:g}"
    console.print(f"reward {reward}", style="bold")
