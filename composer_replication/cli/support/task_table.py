"""A table of tasks, with what the reward of each rests on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.table import Table

from composer_replication.cli.support.options import marked
from composer_replication.tasks.store import Task

_COLUMNS = ("task", "deleted", "lines", "fail-to-pass", "pass-to-pass", "held-out", "strength")
MOST_ROWS = 500
"""Tasks that are worth a table: more are printed as lines, which takes a hundredth of the time."""


def task_lines(tasks: Sequence[Task]) -> Iterator[str]:
    """Yield a line for each task, columns separated by tabs, after one with their names."""
    yield "\t".join(_COLUMNS)
    yield from ("\t".join(_row(task)) for task in tasks)


def task_table(tasks: Sequence[Task]) -> Table:
    """Return a table with a row for each task."""
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    name, deleted, *numbers, strength = _COLUMNS
    table.add_column(name, no_wrap=True)
    table.add_column(deleted, overflow="fold")
    for number in numbers:
        table.add_column(number, justify="right")
    table.add_column(strength, overflow="fold")
    for task in tasks:
        table.add_row(*_row(task))
    return table


def _row(task: Task) -> tuple[str, ...]:
    spec = task.spec
    names = ", ".join(d.qualname for d in spec.deleted)
    lines = sum(d.lines for d in spec.deleted)
    numbers = (lines, len(spec.fail_to_pass), len(spec.pass_to_pass), task.provenance.get("held_out_programs", 0))
    strength = f"forgeable: {spec.hidden.weakness}" if spec.forgeable else "strong"
    return marked(spec.task_id, spec.impossible), names, *map(str, numbers), strength
