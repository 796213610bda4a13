"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from composer_replication.sandbox import SandboxKind

__all__ = ["SandboxOption"]

_KINDS = "auto, namespaces, bubblewrap, landlock, docker, docker:IMAGE, remote:URL or unsafe-subprocess"

SandboxOption: TypeAlias = Annotated[SandboxKind, typer.Option(metavar="KIND", help=f"Where untrusted code runs: {_KINDS}.")]
