"""Copies of a project's functions in files that a sandbox can read outside of the tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from composer_replication.languages.functions import Function, Skipped, body_of
from composer_replication.sandbox.protocol import Sandbox

_SHORTEST = 40
"""Bytes of a body, without white space, below which it is not distinctive."""
_LARGEST = 4 << 20


def find_copies(
    sandbox: Sandbox,
    sources: Mapping[str, bytes],
    keys: Sequence[str],
    find_functions: Callable[[str, bytes], tuple[list[Function], list[Skipped]]],
    *,
    roots: Sequence[str],
    endings: tuple[str, ...],
    same_name: bool,
) -> dict[str, str]:
    """Return where a sandbox can read functions of `sources`, by their keys.

    Search for the text of bodies, white space aside. Empty where sandboxes do not isolate.

    Args:
        roots: the folders to search.
        endings: of the files' names.
        same_name: look only into files that have the name of a source.
    """
    if sandbox.isolation.name == "unsafe-subprocess":
        return {}
    wanted = set(keys)
    bodies: dict[bytes, list[str]] = {}
    for path, source in sources.items():
        for function in find_functions(path, source)[0]:
            text = _bare(body_of(source, function))
            if function.key in wanted and len(text) >= _SHORTEST:
                bodies.setdefault(text, []).append(function.key)
    names = {path.rpartition("/")[2] for path in sources}
    found: dict[str, str] = {}
    for file in _files(roots, endings) if bodies else ():
        if not same_name or file.name in names:
            content = _bare(file.read_bytes())
            for text, here in bodies.items():
                if text in content:
                    found |= {key: str(file) for key in here if key not in found}
    return found


def _bare(text: bytes) -> bytes:
    return b"".join(text.split())


def _files(roots: Sequence[str], endings: tuple[str, ...]) -> Iterator[Path]:
    for root in dict.fromkeys(roots):
        for folder, inner, names in os.walk(root):
            inner.sort()
            for name in sorted(names):
                file = Path(folder) / name
                if name.endswith(endings) and file.is_file() and file.stat().st_size <= _LARGEST:
                    yield file
