"""Deleting features: a body becomes `raise NotImplementedError`, and every other byte of the file stays as it was."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from composer_replication.languages.python.functions import Function, split_lines

STUB = "raise NotImplementedError"
"""The body that stands in a task's tree."""


def delete_bodies(source: bytes, functions: Iterable[Function]) -> bytes:
    """Return `source` without the bodies of `functions`, which `find_functions` found in it.

    The stub takes the body's indentation and the ending of the body's last line, which the end of the file may lack.
    """
    lines = split_lines(source)
    for function in sorted(functions, key=lambda f: f.first_line, reverse=True):
        last = lines[function.last_line - 1]
        ending = last[len(last.rstrip(b"\r\n")) :]
        lines[function.first_line - 1 : function.last_line] = [function.indent + STUB.encode() + ending]
    return b"".join(lines)


def body_of(source: bytes, function: Function) -> bytes:
    """Return the lines of `source` that deleting `function` removes."""
    return b"".join(split_lines(source)[function.first_line - 1 : function.last_line])


def unified_diff(before: Mapping[str, bytes | None], after: Mapping[str, bytes]) -> bytes:
    r"""Return a patch that `git apply` and `patch -p1` take, from the files of `before` to those of `after` (same paths).

    None is a file that is not there yet.

    Lines are what ends in ``\n``, byte for byte; nothing is decoded.
    """
    pieces: list[bytes] = []
    for path in sorted(before):
        was, name = before[path], path.encode()
        old, new = (was or b"").split(b"\n"), after[path].split(b"\n")
        from_name = b"/dev/null" if was is None else b"a/" + name
        rows = difflib.diff_bytes(difflib.unified_diff, _ended(old), _ended(new), from_name, b"b/" + name)
        pieces += [row if row.endswith(b"\n") else row + b"\n\\ No newline at end of file\n" for row in rows]
    return b"".join(pieces)


def _ended(lines: list[bytes]) -> list[bytes]:
    """Put the newlines back on split lines."""
    return [line + b"\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]
