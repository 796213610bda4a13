"""Copies of a project's functions in files that a sandbox can read outside of the tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from composer_replication.languages.functions import Function, body_of
from composer_replication.sandbox.protocol import Sandbox

_SHORTEST = 40
"""Bytes of a body, without white space, below which it is not distinctive."""
_LARGEST = 4 << 20


def find_copies(
    sandbox: Sandbox,
    sources: Mapping[str, bytes],
    keys: Sequence[str],
    *,
    functions_in: Callable[[str, bytes], Iterable[Function]],
    folders: Sequence[str],
    takes: Callable[[str], bool],
) -> dict[str, str]:
    """Return where a sandbox can read functions of `sources`, by their keys.

    What is searched for is the text of a body, white space aside. Empty where sandboxes do not isolate.

    Args:
        functions_in: returns the functions of a file, given its path and content.
        folders: what of this machine boxes show.
        takes: whether a file of this name is read.
    """
    if sandbox.isolation.name == "unsafe-subprocess":
        return {}
    wanted = set(keys)
    bodies: dict[bytes, list[str]] = {}
    for path, source in sources.items():
        for function in functions_in(path, source):
            text = _bare(body_of(source, function))
            if function.key in wanted and len(text) >= _SHORTEST:
                bodies.setdefault(text, []).append(function.key)
    found: dict[str, str] = {}
    for file in _files(folders, takes) if bodies else ():
        content = _bare(file.read_bytes())
        for text, here in bodies.items():
            if text in content:
                found |= {key: str(file) for key in here if key not in found}
    return found


def _bare(text: bytes) -> bytes:
    return b"".join(text.split())


def _files(roots: Sequence[str], takes: Callable[[str], bool]) -> Iterator[Path]:
    for root in dict.fromkeys(roots):
        for folder, inner, names in os.walk(root):
            inner.sort()
            for name in sorted(names):
                file = Path(folder) / name
                if takes(name) and file.is_file() and file.stat().st_size <= _LARGEST:
                    yield file
