"""Options and output that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from composer_replication.observe.console import Console
from composer_replication.sandbox import SandboxKind
from composer_replication.sandbox.opening import check_kind
from composer_replication.types.errors import ConfigError

_PIPED_WIDTH = 160
_KINDS = "auto, namespaces, bubblewrap, landlock, docker, docker:IMAGE, remote:URL or unsafe-subprocess"

SandboxOption: TypeAlias = Annotated[
    SandboxKind, typer.Option(metavar="KIND", callback=check_kind, help=f"Where untrusted code runs: {_KINDS}.")
]

ForgeableOption: TypeAlias = Annotated[
    bool, typer.Option("--forgeable", help="Take also tasks whose reward a program could forge.")
]


def marked(task_id: str, impossible: bool) -> str:
    """Format a task's name for a table."""
    return f"{task_id} (impossible)" if impossible else task_id


def shortened(text: str, most: int) -> str:
    """Cut a text to at most so many characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def wide_console() -> Console:
    """Make a console on stdout, wide where it is not a terminal, so that ids stay whole."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPED_WIDTH)


def refuse_overwriting(read: dict[str, Path | None], written: dict[str, Path | None]) -> None:
    """Raise ConfigError when a file to be written is read too, or would be written twice. Files are named by their argument."""
    taken = {path.resolve(): name for name, path in read.items() if path is not None}
    for name, path in written.items():
        if path is None:
            continue
        other = taken.setdefault(path.resolve(), name)
        if other != name:
            raise ConfigError(f"{name} and {other} are the same file, {path}", fix=f"give {name} a separate file")


ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Continue from the last checkpoint; start a new run when there is none.")
]
