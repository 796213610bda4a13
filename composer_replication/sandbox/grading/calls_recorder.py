"""Recorder of the calls that tests make: which function of the project, with which arguments.

Its text runs in a sandbox, behind that of `literals`, as an observer of `pytest_driver`. Only calls that stand in a test file
count: the project's own internal calls are not part of its interface.
"""

from __future__ import annotations

import dis
import json
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_replication.sandbox.grading.literals import Unwritable, encode_argument, find

_KEPT = 1 << 16
"""Most objects whose construction is remembered."""
_VARARGS, _VARKEYWORDS, _GENERATOR, _ASYNC = 0x04, 0x08, 0x20, 0x280


class CallRecorder:
    """A profile function. Keeps at most `limit` different calls of a function."""

    def __init__(self, sources: list[str], limit: int) -> None:
        root = os.getcwd()
        self.root = root + os.sep
        self.sources = {os.path.join(root, path) for path in sources}
        self.limit = limit
        self.places: dict[str, str] = {}
        self.calls: dict[str, dict[str, str]] = {}
        self.made: dict[int, tuple[Any, list[Any]]] = {}
        self.starts: dict[CodeType, int] = {}
        self.busy = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or self.busy or self.place_of(frame.f_code) != "source":
            return
        self.busy = True
        try:
            if frame.f_code.co_name == "__init__":
                self.remember(frame)
            if frame.f_back is not None and self.place_of(frame.f_back.f_code) == "test":
                self.record(frame, self.place_of(frame.f_back.f_code, name=True))
        finally:
            self.busy = False

    def place_of(self, code: CodeType, *, name: bool = False) -> str:
        """Return `source`, `test` (any other file of the tree) or nothing; with `name`, the file's path."""
        file = code.co_filename
        place = self.places.get(file)
        if place is None:
            inside = file in self.sources or (file.startswith(self.root) and file.endswith(".py"))
            place = self.places[file] = ("source" if file in self.sources else "test") if inside else ""
        return file[len(self.root) :] if name else place

    def remember(self, frame: FrameType) -> None:
        """Record how the object under construction is constructed: the outermost `__init__` decides."""
        code, values = frame.f_code, frame.f_locals
        if not code.co_argcount or code.co_varnames[0] not in values or len(self.made) >= _KEPT:
            return
        made = values[code.co_varnames[0]]
        kind = type(made)
        target = f"{kind.__module__}:{kind.__qualname__}"
        if id(made) in self.made or "<" in target or find(target, None) is not kind:
            return
        try:
            positional, keyword = self.arguments(frame, skip=1)
        except Unwritable:
            return
        self.made[id(made)] = (made, [target, positional, keyword])

    def record(self, frame: FrameType, test_file: str) -> None:
        code = frame.f_code
        if code.co_name in ("__init__", "__new__", "__del__") or "<" in code.co_qualname or code.co_flags & _ASYNC:
            return
        if code.co_flags & _GENERATOR and frame.f_lasti > self.start_of(code):
            return
        target = f"{frame.f_globals.get('__name__')}:{code.co_qualname}"
        known = self.calls.setdefault(target, {})
        if len(known) >= self.limit or getattr(find(target, None), "__code__", code) is not code:
            return
        try:
            arguments = json.dumps(self.arguments(frame, skip=0))
        except (Unwritable, RecursionError):
            return
        known.setdefault(arguments, test_file)

    def start_of(self, code: CodeType) -> int:
        """Return the offset of the instruction at which a generator's first run begins."""
        if code not in self.starts:
            self.starts[code] = next(i.offset for i in dis.get_instructions(code) if i.opname == "RESUME")
        return self.starts[code]

    def arguments(self, frame: FrameType, skip: int) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments, encoded; those that are their parameter's default are left out."""
        code, values = frame.f_code, frame.f_locals
        positional_names = code.co_varnames[: code.co_argcount]
        keyword_names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        rest = code.co_argcount + code.co_kwonlyargcount
        defaults = self.defaults(frame)
        positional: list[Any] = []
        keyword: dict[str, Any] = {}
        extra: tuple[Any, ...] = ()
        if code.co_flags & _VARARGS:
            extra = values[code.co_varnames[rest]]
            rest += 1
        for number, name in enumerate(positional_names[skip:], skip):
            value = values[name]
            if name in defaults and defaults[name] is value and not extra:
                continue
            if len(positional) == number - skip:
                positional.append(encode_argument(value, self.made_like))
            elif number >= code.co_posonlyargcount:
                keyword[name] = encode_argument(value, self.made_like)
            else:
                raise Unwritable("a positional argument after a default")
        positional += [encode_argument(value, self.made_like) for value in extra]
        for name in keyword_names:
            if name not in defaults or defaults[name] is not values[name]:
                keyword[name] = encode_argument(values[name], self.made_like)
        if code.co_flags & _VARKEYWORDS:
            keyword |= {name: encode_argument(value, self.made_like) for name, value in values[code.co_varnames[rest]].items()}
        return positional, keyword

    def defaults(self, frame: FrameType) -> dict[str, Any]:
        code = frame.f_code
        function = find(f"{frame.f_globals.get('__name__')}:{code.co_qualname}", None)
        if getattr(function, "__code__", None) is not code:
            return {}
        given = function.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
        return {**dict(zip(names, given, strict=True)), **(function.__kwdefaults__ or {})}

    def made_like(self, value: Any) -> list[Any] | None:
        entry = self.made.get(id(value))
        return None if entry is None or entry[0] is not value else entry[1]


def start(options: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Record until the returned function is called, which returns: target -> [arguments as JSON, test file] in order.

    Args:
        options: `sources`, paths relative to the working directory, and `limit`.
    """
    recorder = CallRecorder(options["sources"], options["limit"])
    sys.setprofile(recorder)

    def stop() -> dict[str, Any]:
        sys.setprofile(None)
        return {target: list(calls.items()) for target, calls in recorder.calls.items() if calls}

    return stop
