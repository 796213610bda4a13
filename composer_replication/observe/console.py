"""The one way to the terminal: whatever is printed, the terminal obeys nothing of it but what rich itself adds.

Names of files, messages of tests, answers of endpoints and lines of logs are written by others. Their control characters are
shown as escapes. What libraries print past this console is guarded in `types.guarded_streams`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import IO, Any, cast

import rich.console
import typer
from rich.file_proxy import FileProxy
from rich.segment import Segment

from composer_replication.types.guarded_streams import guarded
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

    def push_render_hook(self, hook: rich.console.RenderHook) -> None:
        """Begin a live display, for which rich has just redirected the standard streams: it reads colours and links out of what
        others print, so that goes through the guard before."""
        super().push_render_hook(hook)
        for name in ("stdout", "stderr"):
            if isinstance(stream := getattr(sys, name), FileProxy):
                setattr(sys, name, guarded(cast(IO[str], stream)))


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a line as it is, but for control characters, which are shown as escapes.

    Args:
        err: to standard error.
        nl: with a line end.
    """
    typer.echo(visible(text), err=err, nl=nl)
