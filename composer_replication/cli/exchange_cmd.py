"""`composer tasks export` and `import`: tasks in other people's formats. `push` and `pull`: tasks as datasets."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from composer_replication.cli.support.options import SandboxOption, wide_console
from composer_replication.cli.support.task_table import task_table
from composer_replication.observe.console import echo
from composer_replication.sandbox import open_sandbox
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.tasks.exchange import export_harbor, export_images, export_swebench, import_harbor
from composer_replication.tasks.exchange.dataset import (
    REQUIREMENTS,
    Unlicensed,
    install_requirements,
    read_dataset,
    write_dataset,
)
from composer_replication.tasks.exchange.hub import check_repo_id, fetch_dataset, push_dataset
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


def push_tasks(
    tasks: Annotated[Path, typer.Argument(help="Folder of tasks or set of tasks, as `composer tasks build` writes it.")],
    repo_id: Annotated[str | None, typer.Argument(help="The dataset, OWNER/NAME; its tasks are replaced.")] = None,
    to: Annotated[
        Path | None, typer.Option("--to", file_okay=False, help="Write the dataset into this folder and upload nothing.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Let everybody see it; a new dataset is private.")] = False,
    unlicensed: Annotated[
        Unlicensed, typer.Option(help="What to do with tasks under no known licence, or one that forbids to pass on changes.")
    ] = "refuse",
    python: Annotated[Path | None, typer.Option(help="Interpreter whose versions are told to whoever pulls.")] = None,
) -> None:
    """Write tasks as a dataset with a card and an index, and upload it to the Hugging Face Hub."""
    if (repo_id is None) == (to is None):
        raise ConfigError("push needs one place", fix="name a dataset, OWNER/NAME, or a folder with --to")
    name = check_repo_id(repo_id) if repo_id else f"OWNER/{to.resolve().name}" if to else ""
    if to is not None:
        _refuse_overlap(tasks, to, "--to")
    found = load_tasks(tasks)
    pythons = interpreters_of(found, python)
    placed = [task for task in found if task.spec.task_id in pythons]
    with ExitStack() as stack:
        folder = to if to is not None else stack.enter_context(scratch_folder()) / "dataset"
        builds = write_dataset(placed, folder, repo_id=name, pythons=pythons, unlicensed=unlicensed)
        place = str(folder) if repo_id is None else push_dataset(folder, repo_id, public=public)
    echo(f"{sum(len(build.tasks) for build in builds)} of {len(found)} tasks of {len(builds)} repositories in {place}")


def pull_tasks(
    repo_id: Annotated[str, typer.Argument(help="The dataset, OWNER/NAME.")],
    out: Annotated[Path, typer.Argument(file_okay=False, help="New folder for the tasks.")],
    revision: Annotated[str | None, typer.Option(help="A branch, a tag or a commit of the dataset.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Make the environments in which the tests run.")] = False,
    sandbox: SandboxOption = "auto",
) -> None:
    """Download tasks that `composer tasks push` uploaded into a new set of tasks, and check every file. What is damaged is left
    out and listed.

    Exits with 1 when something is left out, and with 3 when nothing can be used.
    """
    folder, commit = fetch_dataset(check_repo_id(repo_id), revision)
    builds, refused = read_dataset(folder, out)
    for one in refused:
        echo(f"left out: {one.what}: {one.reason}")
    echo(f"{sum(build.tasks for build in builds)} tasks of {len(builds)} repositories in {out}, of the commit {commit}")
    for build in builds:
        if install and not build.ready:
            install_requirements(build, open_sandbox(sandbox))
        elif not build.ready:
            echo(
                f"{build.folder}: its tests need Python {build.pins.python} with {build.folder / REQUIREMENTS}, installed into "
                f"{build.folder / '.venv'} (--install does that) or an interpreter that --python names"
            )
    if refused:
        raise typer.Exit(1)


def _refuse_overlap(source: Path, out: Path, option: str = "--out") -> None:
    """Refuse inputs that outputs would replace: output folders replace folders of their name. Raises ConfigError."""
    read, written = source.resolve(), out.resolve()
    if read.is_relative_to(written) or written.is_relative_to(read):
        raise ConfigError(f"{option} {out} and {source} lie in one another", fix=f"name a folder beside it with {option}")
