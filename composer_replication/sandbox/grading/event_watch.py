"""The dynamic half of the tripwire: an audit hook in the process that runs the tests, which notes what the sources cause.

Its text runs in a sandbox, as an observer of `pytest_driver`. Each kind is written to the private channel at once, because the
process may not get to its end, in a frame that begins with a mark: `MARK`, two digits with the length, the kind. The code under
test shares the interpreter, and could find this hook and silence it. It must never fail for, slow down or deadlock honest code.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_DIRECT = frozenset(
    {"exec", "compile", "sys._getframe", "sys._current_frames", "object.__getattr__", "object.__setattr__", "object.__delattr__"}
    | {"sys._getframemodulename", "code.__new__", "function.__new__", "marshal.loads", "marshal.load", "import"}
)
"""Events that the standard library causes all the time (a namedtuple compiles, executes and reads a frame): they count where the
sources themselves cause them."""
_ANYWHERE = (
    *("sys.settrace", "sys.setprofile", "sys.addaudithook", "sys.unraisablehook", "gc.", "ctypes.", "mmap.", "resource."),
    *("os.exec", "os.fork", "os.kill", "os.system", "os.posix_spawn", "os.spawn", "subprocess.", "pty.", "signal.", "socket."),
    *("open", "os.listdir", "os.scandir", "os.walk", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.link"),
    *("os.symlink", "os.truncate", "os.chdir", "shutil.", "tempfile.", "glob.", "urllib.", "sqlite3."),
)
"""Beginnings of events that count also where a library causes them for the sources."""
_EVERYDAY = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
"""Attributes whose reading is no event here: pytest reads them all the time. Setting them is one."""
_DEEPEST = 40
_MOST_KINDS = 60
_LONGEST = 80


class EventWatch:
    """What an audit hook needs. Notes each kind of event once."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.channel: int = options["channel"]
        self.mark: bytes = options["mark"].encode()
        self.modules = frozenset(options["modules"])
        self.sources = [re.compile(pattern, re.DOTALL) for pattern in options["sources"]]
        self.root = os.getcwd() + os.sep
        self.places: dict[str, str] = {}
        self.watched: dict[str, str] = {}
        self.known: set[str] = set()
        self.process = os.getpid()
        self.writing = threading.Lock()
        self.busy = False

    def hook(self) -> Callable[[str, tuple[Any, ...]], None]:
        """Return the audit hook: one function with all at hand that most events need, for pytest alone causes thousands."""
        watched, places, frame_at = self.watched, self.places, sys._getframe

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event not in watched:
                watched[event] = "direct" if event in _DIRECT else "anywhere" if event.startswith(_ANYWHERE) else ""
            how = watched[event]
            if not how or self.busy or (event == "object.__getattr__" and arguments[1] in _EVERYDAY):
                return
            self.busy = True
            try:
                frame = frame_at(1)
                if how == "direct" and places.get(frame.f_code.co_filename) == "library":
                    return
                if self.is_of_sources(frame, direct=how == "direct"):
                    self.note(self.kind(event, arguments))
            except Exception:  # noqa: BLE001 - an exception of a hook would stop what the code under test does
                return
            finally:
                self.busy = False

        return hook

    def is_of_sources(self, frame: FrameType | None, *, direct: bool) -> bool:
        """Return whether the nearest frame of the tree is one of its sources; `direct` allows no library between."""
        for _ in range(_DEEPEST):
            if frame is None:
                return False
            place = self.place_of(frame.f_code.co_filename)
            if place in ("source", "tree", "import") or (direct and place == "library"):
                return place == "source"
            frame = frame.f_back
        return False

    def place_of(self, file: str) -> str:
        """Return `source`, `tree` (a test), `import` (what an import runs), `text` (code made at run time) or `library`."""
        place = self.places.get(file)
        if place is None:
            if file.startswith(self.root):
                path = file[len(self.root) :]
                place = "source" if any(pattern.fullmatch(path) for pattern in self.sources) else "tree"
            elif file.startswith("<frozen importlib"):
                place = "import"
            else:
                place = "text" if file.startswith("<") else "library"
            if len(self.places) < 10_000:
                self.places[file] = place
        return place

    def kind(self, event: str, arguments: tuple[Any, ...]) -> str:
        """Return the event with the little of its arguments that tells kinds apart; nothing for one that tells nothing."""
        if event == "import":
            top = str(arguments[0]).partition(".")[0]
            return f"import {top}" if top in self.modules else ""
        if event == "open":
            return f"open {self.where(arguments[0])}"
        if event.startswith("object."):
            return f"{event} {arguments[1]}"
        return event

    def where(self, path: Any) -> str:
        """Return roughly where a file lies."""
        if not isinstance(path, str | bytes):
            return "a descriptor"
        full = os.path.normpath(os.path.join(self.root, os.fsdecode(path)))
        if full.startswith(self.root):
            return "the tree"
        return "/proc" if full.startswith("/proc") else "elsewhere"

    def note(self, kind: str) -> None:
        """Write a new kind to the channel, unless a thread is at it or the answer begins."""
        kind = kind[:_LONGEST]
        if not kind or kind in self.known or len(self.known) >= _MOST_KINDS or os.getpid() != self.process:
            return
        if self.writing.acquire(blocking=False):
            try:
                self.known.add(kind)
                text = kind.encode("ascii", "replace")
                os.write(self.channel, self.mark + b"%02d" % len(text) + text)
            finally:
                self.writing.release()

    def stop(self) -> None:
        """Let nothing be written any more: the answer comes next, and no frame may land in it."""
        self.writing.acquire()


def start(options: dict[str, Any]) -> Callable[[], None]:
    """Watch until the returned function is called.

    Args:
        options: the `channel`, the `mark` of frames, `sources` (regular expressions of paths) and telling `modules`.
    """
    watch = EventWatch(options)
    sys.addaudithook(watch.hook())
    return watch.stop
