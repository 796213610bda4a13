"""`composer tasks export` and `import`: tasks in other people's formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from composer_replication.cli.support.options import SandboxOption, wide_console
from composer_replication.cli.support.task_table import task_table
from composer_replication.observe.console import echo
from composer_replication.sandbox import open_sandbox
from composer_replication.tasks.exchange import export_harbor, export_images, export_swebench, import_harbor
from composer_replication.tasks.exchange.images import REPOSITORY
from composer_replication.tasks.folders import load_tasks
from composer_replication.tasks.interpreters import build_python, interpreters_of
from composer_replication.types.errors import ConfigError, TaskError


def export_tasks(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks or set of tasks, as `composer tasks build` writes it.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Output folder; tasks of the same name are replaced.")],
    format: Annotated[  # noqa: A002 (the option's name)
        Literal["harbor", "swebench", "docker"],
        typer.Option(help="Harbor directories, SWE-bench rows, or a Dockerfile for each build."),
    ] = "harbor",
    python: Annotated[Path | None, typer.Option(help="Interpreter whose versions an image gets.")] = None,
) -> None:
    """Write tasks as Harbor directories, graded without network, or as SWE-bench rows with a git bundle each; or write only the
    Dockerfiles of images that hold what their tests need."""
    _refuse_overlap(tasks, out)
    found = load_tasks(tasks)
    if format != "swebench":
        pythons = interpreters_of(found, python)
        placed = [task for task in found if task.spec.task_id in pythons]
        if format == "harbor":
            export_harbor(placed, out, pythons=pythons)
            echo(f"{len(placed)} Harbor tasks in {out}")
        else:
            for folder in export_images(placed, out, pythons=pythons):
                echo(f"docker build --tag {REPOSITORY}/{folder.name} {folder}")
    else:
        rows = export_swebench(found, out)
        impossible = sum(task.spec.impossible for task in found)
        left = f"; {impossible} impossible tasks left out" if impossible else ""
        echo(f"{len(found) - impossible} SWE-bench rows in {rows}{left}")


def import_tasks(
    format: Annotated[Literal["harbor"], typer.Argument(help="The format to read.")],  # noqa: A002 (the argument's name)
    folder: Annotated[Path, typer.Argument(help="A Harbor task, or a folder with some below it.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the tasks.")],
    python: Annotated[Path | None, typer.Option(help="Interpreter for the tests; this one by default.")] = None,
    sandbox: SandboxOption = "auto",
) -> None:
    """Read Harbor tasks that can be expressed as ours; every other one is listed with the reason.

    Exits with 1 when some cannot, and with 3 when none can.
    """
    del format
    _refuse_overlap(folder, out)
    interpreter = (python or build_python(out, sandbox)).absolute()
    tasks, refused = import_harbor(folder, out, sandbox=open_sandbox(sandbox), python=interpreter)
    for refusal in refused:
        echo(f"not imported: {refusal.what}: {refusal.reason}")
    if tasks:
        wide_console().print(task_table(tasks))
    echo(f"{len(tasks)} of {len(tasks) + len(refused)} Harbor tasks imported into {out}")
    if not tasks:
        raise TaskError(f"none of {len(refused)} Harbor tasks can be expressed as ours", fix="see the reasons above")
    if refused:
        raise typer.Exit(1)


def _refuse_overlap(source: Path, out: Path) -> None:
    """Refuse inputs that outputs would replace: output folders replace folders of their name. Raises ConfigError."""
    read, written = source.resolve(), out.resolve()
    if read.is_relative_to(written) or written.is_relative_to(read):
        raise ConfigError(f"--out {out} and {source} lie in one another", fix="name a folder beside it with --out")
