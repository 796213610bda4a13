"""What a language says of a project's functions, the same for every language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function or method, and the lines of its body."""

    path: str
    """POSIX path relative to the root."""
    qualname: str
    """Dotted name inside the module."""
    def_line: int
    """1-based, the line of the word that defines it, such as `def`."""
    parameters: tuple[str, ...]
    """Names, those by position first, without that of `**`."""
    rest: str = ""
    """The one that takes any number of arguments by position (`*args`); empty where there is none."""
    first_line: int
    """1-based, the first line to remove: the one after the docstring, or after the signature."""
    last_line: int
    """The last line to remove, comments at the body's indentation included."""
    indent: bytes
    """The body's indentation."""
    calls: frozenset[str]
    """Names and attributes the body calls."""
    branches: int
    """Conditions, loops, handlers, cases, boolean operators and comprehensions in it."""

    @property
    def key(self) -> str:
        """`path::qualname`, unique in the tree."""
        return f"{self.path}::{self.qualname}"

    @property
    def lines(self) -> int:
        """Number of lines to remove."""
        return self.last_line - self.first_line + 1


@dataclass(frozen=True, slots=True)
class Skipped:
    """A function, or a whole file (`what` is its path), that gives no task."""

    what: str
    reason: str
    detail: str = ""
    """What the reason says for this one alone, such as the program that forges its reward."""


def sorted_out(path: str, found: Iterable[tuple[str, Function | str]]) -> tuple[list[Function], list[Skipped]]:
    """Return the functions of a file that have their names alone, and what is skipped and why.

    Args:
        found: dotted names, each with the function, or with the reason why it is skipped.
    """
    functions: list[Function] = []
    skipped: list[Skipped] = []
    for name, one in found:
        if isinstance(one, Function):
            functions.append(one)
        else:
            skipped.append(Skipped(f"{path}::{name}", one))
    times = Counter(function.key for function in functions)
    skipped += [Skipped(key, "defined more than once") for key, count in times.items() if count > 1]
    return [function for function in functions if times[function.key] == 1], skipped


def split_lines(source: bytes) -> list[bytes]:
    r"""Split into lines, each with its ending.

    Only ``\n``, ``\r\n`` and ``\r`` end one; `str.splitlines` has more.
    """
    return source.splitlines(keepends=True)


def body_of(source: bytes, function: Function) -> bytes:
    """Return the lines of `source` that deleting `function` removes."""
    return b"".join(split_lines(source)[function.first_line - 1 : function.last_line])


def with_stubs(source: bytes, functions: Iterable[Function], stub: str) -> bytes:
    """Return `source` with the line `stub` in the place of the bodies of `functions`, which were found in it.

    The stub takes the body's indentation and the ending of the body's last line, which the end of the file may lack.
    """
    lines = split_lines(source)
    for function in sorted(functions, key=lambda f: f.first_line, reverse=True):
        last = lines[function.last_line - 1]
        ending = last[len(last.rstrip(b"\r\n")) :]
        lines[function.first_line - 1 : function.last_line] = [function.indent + stub.encode() + ending]
    return b"".join(lines)


def files_with_stubs(files: Mapping[str, bytes], functions: Iterable[Function], stub: str) -> dict[str, bytes]:
    """Return the files that change when the line `stub` takes the place of the bodies of `functions`."""
    by_path: dict[str, list[Function]] = {}
    for function in functions:
        by_path.setdefault(function.path, []).append(function)
    return {path: with_stubs(files[path], found, stub) for path, found in by_path.items()}
