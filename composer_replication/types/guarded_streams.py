r"""The standard streams of our commands, guarded: a terminal obeys nothing of what others wrote.

Libraries print the texts of strangers in their own ways: loggers with handlers of their own, `warnings`, tracebacks, `print`. All
of it passes through `sys.stdout` and `sys.stderr`, where control characters become escapes such as `\x1b`, and colours are left
out.
Our own console (`observe.console`), which cleans what it prints itself, writes past the guard and keeps its colours.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, TextIO, cast

from composer_replication.types.plain_text import visible

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_LINE_UP = "\x1b[A"
_UP = re.compile(f"(?:{re.escape(_LINE_UP)})+")
"""How tqdm goes back to the bar above."""
_STANDARD_ERROR = 2


@dataclass(slots=True)
class _Screen:
    """The terminal that the guarded streams share."""

    writer: GuardedStream | None = None
    """Wrote last; None where something was printed past the guards, or nothing yet."""
    below: int = 0
    """Lines between the first of several bars of the writer's and the one that is being written."""


_SCREEN = _Screen()


class _Remembering:
    """A text stream that remembers why it could not be written."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "_stream":  # of a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        _SCREEN.writer = None
        with self.recorded():
            return self._stream.write(text)

    def flush(self) -> None:
        with self.recorded():
            self._stream.flush()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.lost = error
            raise


class GuardedStream:
    r"""A text stream that shows control characters as escapes.

    A progress bar of a library may move: a line that begins with `\r` may contain more of them. tqdm may go down from such a
    line, and back up as far: what was printed before the bars cannot be written over, nor what another stream printed since.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = _Remembering(stream)
        self._is_bar: bool | None = None
        """The line that is being written began with a carriage return; None before its first character."""

    def __getattr__(self, name: str) -> Any:
        if name == "_stream":  # of a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self._stream, name)

    @property
    def lost(self) -> OSError | None:
        """Why something could not be written; None where everything could."""
        return self._stream.lost

    @property
    def rich_proxied_file(self) -> Any:
        """The stream itself, to which consoles of rich write."""
        stream: Any = self._stream
        while (inner := getattr(stream, "rich_proxied_file", None)) is not None:
            stream = inner
        return stream

    def write(self, text: str) -> int:
        """Write a text, with escapes also for what the stream's encoding lacks. Returns its length. Raises OSError."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(self._shown(text).encode(encoding, "backslashreplace").decode(encoding))
        _SCREEN.writer = self
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write text after text. Raises OSError."""
        for line in lines:
            self.write(line)

    def _shown(self, text: str) -> str:
        goes_on = _SCREEN.writer is self
        _SCREEN.below = _SCREEN.below if goes_on else 0
        if self._is_bar and _UP.fullmatch(text) and text.count(_LINE_UP) <= _SCREEN.below:
            _SCREEN.below -= text.count(_LINE_UP)
            return text
        goes_down = self._is_bar and goes_on and not text.strip("\n")
        shown = []
        for number, line in enumerate(_COLOUR.sub("", text).split("\n")):
            if number:
                self._is_bar = None
            if line and self._is_bar is None:
                self._is_bar = line.startswith("\r")
            shown.append("\r".join(map(visible, line.split("\r"))) if self._is_bar else visible(line))
        if goes_down:
            _SCREEN.below += len(text)
        elif "\n" in text or self._is_bar is False:
            _SCREEN.below = 0
        return "\n".join(shown)


def guarded(stream: IO[str]) -> TextIO:
    """Return the stream behind a guard."""
    return cast(TextIO, stream if isinstance(stream, GuardedStream) else GuardedStream(stream))


def guard_streams() -> None:
    """Guard standard output and standard error, also for the handlers of logs that hold them already, and print tracebacks whole.

    Every program of ours calls it first. Standard streams that are closed become the null device: else a pipe that is opened
    later gets the number of one, and a process that we start takes it for that.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:
            setattr(sys, name, guarded(stream))
            _redirect_handlers(stream, getattr(sys, name))
    sys.excepthook = _print_traceback


def _redirect_handlers(before: TextIO, after: TextIO) -> None:
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                handler.setStream(after)


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(visible("".join(traceback.format_exception(kind, error, trace))))
