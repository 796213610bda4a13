"""`composer report RUN`: rebuild a run's report.html from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer_replication.observe.console import echo
from composer_replication.observe.report import rebuild_report
from composer_replication.observe.run_dir import RunDir


def report(run: Annotated[Path, typer.Argument(help="Run directory, e.g. runs/NAME.")]) -> None:
    """Rebuild RUN/report.html from the run's files, finished or not, and print its path."""
    echo(str(rebuild_report(RunDir(run))))
