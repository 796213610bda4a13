"""The one way to the terminal: whatever is printed, the terminal obeys nothing of it but what rich itself adds.

Names of files, messages of tests, answers of endpoints and lines of logs are written by others. Their control characters are
shown as escapes.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import rich.console
import typer
from rich.segment import Segment

from composer_replication.types.plain_text import visible


class Console(rich.console.Console):
    """A rich console that shows control characters of what it prints as escapes, and obeys no markup in it: colours come with
    `rich.text.Text`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, **options})

    def render(
        self, renderable: rich.console.RenderableType, options: rich.console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a line as it is, but for control characters, which are shown as escapes.

    Args:
        err: to standard error.
        nl: with a line end.
    """
    typer.echo(visible(text), err=err, nl=nl)


class _VisibleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def guard_standard_error() -> None:
    """Show control characters as escapes also in tracebacks, and in log records that no handler takes."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_VisibleFormatter())
    sys.excepthook = _print_traceback


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(visible("".join(traceback.format_exception(kind, error, trace))))
