"""Audit events of a test run as the host reads them. What is lost or garbled is no event, and never an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from composer_replication.sandbox.grading.telling_names import TELLING_MODULES
from composer_replication.sandbox.grading.texts import text_of

_MOST_KINDS = 60
_LONGEST = 80
_KIND = re.compile(rb"[ -~]*")

EVENTS: Sequence[tuple[str, str]] = (
    ("sys._getframe", "looks at the frames of its callers"),
    ("sys._current_frames", "looks at the frames of its callers"),
    ("object.__getattr__", "looks at the frames of its callers"),
    ("sys.settrace", "traces or audits other code"),
    ("sys.setprofile", "traces or audits other code"),
    ("sys.addaudithook", "traces or audits other code"),
    ("exec", "runs code made at run time"),
    ("compile", "runs code made at run time"),
    ("marshal.", "runs code made at run time"),
    ("code.__new__", "runs code made at run time"),
    ("function.__new__", "runs code made at run time"),
    ("object.", "reaches into the interpreter"),
    ("gc.", "reaches into the interpreter"),
    ("ctypes.", "reaches into the interpreter"),
    ("sys.", "reaches into the interpreter"),
    ("socket.", "opens connections"),
    ("urllib.", "opens connections"),
    ("open", "reads or writes files"),
    ("glob.", "reads or writes files"),
    ("shutil.", "reads or writes files"),
    ("tempfile.", "reads or writes files"),
    ("sqlite3.", "reads or writes files"),
    *((f"os.{name}", "reads or writes files") for name in ("listdir", "scandir", "walk", "rename", "remove", "rmdir", "mkdir")),
    *((f"os.{name}", "reads or writes files") for name in ("chmod", "link", "symlink", "truncate", "chdir")),
    ("", "uses processes, threads, signals or the system"),
)
"""The beginning of an event -> what code that causes it does, in words of `telling_names.TELLING`; the first that fits."""


def event_observer(mark: str, sources: Sequence[str]) -> dict[str, Any]:
    """Return an observer for `pytest_driver` that notes what `sources`, regular expressions of paths, cause."""
    options = {"mark": mark, "sources": list(sources), "modules": sorted(TELLING_MODULES)}
    return {"programs": [text_of("event_watch")], "options": options}


def events_in(channel: bytes, mark: str) -> tuple[str, ...]:
    """Return the kinds of events that were noted, each once, wherever they stand in the channel."""
    found: dict[str, None] = {}
    for piece in channel.split(mark.encode(), _MOST_KINDS + 1)[1:]:
        kind = _kind(piece)
        if kind:
            found[kind.decode("ascii")] = None
    return tuple(found)[:_MOST_KINDS]


def after_events(channel: bytes, mark: str) -> bytes:
    """Return what follows the events at the beginning of the channel."""
    start = mark.encode()
    while channel.startswith(start):
        kind = _kind(channel[len(start) : len(start) + 2 + _LONGEST])
        if kind is None:
            break
        channel = channel[len(start) + 2 + len(kind) :]
    return channel


def _kind(piece: bytes) -> bytes | None:
    """Return the kind that a frame holds behind its mark; None where it is not whole."""
    if not re.match(rb"\d\d", piece):
        return None
    length = int(piece[:2])
    kind = piece[2 : 2 + length]
    return kind if length <= _LONGEST and len(kind) == length and _KIND.fullmatch(kind) else None
