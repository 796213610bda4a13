"""A table of tasks, with what the reward of each rests on."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from composer_replication.cli.support.options import marked
from composer_replication.tasks.store import Task


def task_table(tasks: Sequence[Task]) -> Table:
    """Return a table with a row for each task."""
    table = Table(box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("task", no_wrap=True)
    table.add_column("deleted", overflow="fold")
    for name in ("lines", "fail-to-pass", "pass-to-pass", "held-out"):
        table.add_column(name, justify="right")
    table.add_column("strength", overflow="fold")
    for task in tasks:
        spec = task.spec
        names = ", ".join(d.qualname for d in spec.deleted)
        lines = sum(d.lines for d in spec.deleted)
        numbers = (lines, len(spec.fail_to_pass), len(spec.pass_to_pass), len(spec.hidden.programs))
        strength = f"forgeable: {spec.hidden.weakness}" if spec.forgeable else "strong"
        table.add_row(marked(spec.task_id, spec.impossible), names, *map(str, numbers), strength)
    return table
