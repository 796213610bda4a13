"""Reading of untrusted files: line by line, within limits, with every fault as a value.

Logs are truncated by killed processes and hold binary output and half surrogate pairs; a folder of them holds other things too.
Nothing here raises for what a file holds: a `Problem` names file and line, and the rest is read.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

MAX_LINE = 64 << 20
"""Bytes of one line; a longer one is a problem and is skipped."""
MAX_DOCUMENT = 256 << 20
"""Bytes of one file that is a single JSON value."""
MAX_DEPTH = 200
"""Lists and objects inside one another: what walks over them recurses, and stacks end."""
MESSAGES = "messages"
"""The field of a record that holds a conversation."""
_SAID = ("content", "value", "text", "tool_calls")
_PEEKED = 20
_HALF = re.compile("[\ud800-\udfff]")
_HUGE = re.compile(rb"[0-9][eE]\+?0*[1-9][0-9]{2}|[0-9]{300}")
"""Pattern that every number beyond a float's range matches; parsing every number would take as long as all the rest."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read; everything else of its file still is."""

    path: Path
    reason: str
    line: int | None = None
    """1-based, of a file of lines."""

    def __str__(self) -> str:
        """Format as one line whatever the file is called: what cannot be printed is escaped."""
        return _printable(f"{self.path}:{self.line}: {self.reason}" if self.line else f"{self.path}: {self.reason}")


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Well-formed records that are not part of any trace, and why not."""

    path: Path
    reason: str
    """One of few constant sentences, so that a table can count them."""
    count: int = 1


class UnreadableError(ValueError):
    """A file or a line that is not JSON data within the limits; its text says why in one line."""


def parse(data: bytes) -> Any:
    """Return strict JSON whose strings can be written as UTF-8: half a surrogate pair becomes U+FFFD, as encoders of requests
    have it.

    Raises:
        UnreadableError: anything else, nesting beyond `MAX_DEPTH`, integers beyond Python's limit of digits and numbers beyond a
            float's range included.
    """
    if b"\0" in data:
        raise UnreadableError("binary, not text")
    try:
        value = json.loads(data.decode(), parse_constant=_refuse, parse_float=_finite if _HUGE.search(data) else None)
    except UnicodeDecodeError as error:
        raise UnreadableError("not UTF-8") from error
    except json.JSONDecodeError as error:
        raise UnreadableError(f"not JSON: {error.msg} (character {error.pos})") from error
    except RecursionError as error:
        raise UnreadableError("nested too deeply") from error
    except ValueError as error:
        raise UnreadableError("a number with too many digits" if "digits" in str(error) else str(error)) from error
    if _too_deep(value):
        raise UnreadableError("nested too deeply")
    return _whole(value) if b"\\ud" in data or b"\\uD" in data else value


def _refuse(name: str) -> NoReturn:
    raise UnreadableError(f"not JSON: {name} is not a number")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise UnreadableError(f"a number beyond a float's range: {digits[:20]}")
    return value


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value


def lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield `(number, line)` of every line that is not blank; None for one that is too long. Raises UnreadableError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise UnreadableError("a link; links are not followed" if path.is_symlink() else error.strerror or str(error)) from error
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableError("not a regular file")
        number = 0
        while line := stream.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                while line and not line.endswith(b"\n"):
                    line = stream.readline(MAX_LINE)
                yield number, None
            elif line.strip():
                yield number, line


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]] | Problem]:
    """Yield the JSON objects of a file of lines with their numbers; a `Problem` for every other line. A line that is a list of
    messages is the object that has it as `messages`."""
    try:
        for number, line in lines(path):
            if line is None:
                yield Problem(path, f"a line of more than {MAX_LINE >> 20} MiB", number)
                continue
            try:
                value = parse(line)
            except UnreadableError as error:
                torn = not line.endswith(b"\n") and str(error).startswith("not JSON")
                cut = "; the file ends in the middle of a line" if torn else ""
                yield Problem(path, f"{error}{cut}", number)
                continue
            yield _record(path, number, value)
    except (UnreadableError, OSError) as error:
        yield Problem(path, str(error))


def _record(path: Path, number: int, value: Any) -> tuple[int, dict[str, Any]] | Problem:
    """Return a value as a numbered record: an object, or a list of messages as the object that has it as `messages`."""
    if isinstance(value, dict):
        return number, value
    return (number, {MESSAGES: value}) if _is_conversation(value) else Problem(path, "not a JSON object", number)


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


def _is_message(value: Any) -> bool:
    """Return whether a value is a message of a conversation by its form: who says what (ShareGPT: `from`, `value`)."""
    if not isinstance(value, dict):
        return False
    return any(isinstance(value.get(name), str) for name in ("role", "from")) and not value.keys().isdisjoint(_SAID)


def document(path: Path) -> Any:
    """Return the one JSON value of a file. Raises UnreadableError."""
    try:
        size = path.lstat().st_size
        if size > MAX_DOCUMENT:
            raise UnreadableError(f"more than {MAX_DOCUMENT >> 20} MiB")
        parts = [line for _, line in lines(path)]
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    if None in parts:
        raise UnreadableError(f"a line of more than {MAX_LINE >> 20} MiB")
    return parse(b"".join(part for part in parts if part))


def documents(path: Path) -> Iterator[tuple[int, dict[str, Any]] | Problem]:
    """Yield the objects of a file of lines, or of one that is a single object or a list of them (numbered from 1).

    A list of messages, alone or as one of several, is the object that has it as `messages`.
    """
    if not _is_spread(path):
        yield from objects(path)
        return
    try:
        value = document(path)
    except UnreadableError as error:
        yield Problem(path, str(error))
        return
    whole = not isinstance(value, list) or _is_conversation(value)
    for number, item in enumerate([value] if whole else value, start=1):
        yield _record(path, number, item)


def _is_spread(path: Path) -> bool:
    """Return whether one JSON value spans several lines, or is a list that is alone in its file."""
    try:
        first, second = (*itertools.islice((line.strip() for _, line in lines(path) if line), 2), b"", b"")[:2]
    except (UnreadableError, OSError):
        return False
    if not second or not first.startswith(b"["):
        return first == b"{" or first.startswith(b"[")
    try:
        parse(first)
    except UnreadableError:
        return True
    return False


def peek(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the first objects of a file, by which a reader knows it. Raises UnreadableError when there is none, and says why."""
    try:
        status = path.lstat()
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from error
    return _peek(path, status.st_mtime_ns, status.st_size)


def holds(path: Path, known: Callable[[dict[str, Any]], bool]) -> bool:
    """Return whether one of the first objects of a file is `known`; False for a folder and for what cannot be read."""
    try:
        return path.is_file() and any(map(known, peek(path)))
    except UnreadableError:
        return False


@lru_cache(maxsize=4)
def _peek(path: Path, changed: int, size: int) -> tuple[dict[str, Any], ...]:
    del changed
    found: list[dict[str, Any]] = []
    problem = "no JSON object" if size else "empty"
    for seen, item in enumerate(documents(path)):
        if isinstance(item, Problem):
            problem = item.reason
        else:
            found.append(item[1])
        if seen + 1 == _PEEKED:
            break
    if not found:
        raise UnreadableError(problem)
    return tuple(found)
