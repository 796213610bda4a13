"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from composer_replication.sandbox import SandboxKind
from composer_replication.sandbox.opening import check_kind

__all__ = ["SandboxOption", "marked"]

_KINDS = "auto, namespaces, bubblewrap, landlock, docker, docker:IMAGE, remote:URL or unsafe-subprocess"

SandboxOption: TypeAlias = Annotated[
    SandboxKind, typer.Option(metavar="KIND", callback=check_kind, help=f"Where untrusted code runs: {_KINDS}.")
]


def marked(task_id: str, impossible: bool) -> str:
    """A task's name in a table."""
    return f"{task_id} (impossible)" if impossible else task_id
