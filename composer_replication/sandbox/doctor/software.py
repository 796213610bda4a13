"""Probes for the software of the machine that no sandbox shows: it may hold a copy of the code that a task deletes.

They look for the host's own files, which they know by device and number: a container has its image's at the same paths.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from composer_replication.sandbox.attempt import Attempt
from composer_replication.sandbox.backends.system import system_view
from composer_replication.sandbox.doctor.probe import shortened
from composer_replication.sandbox.interpreter import installation_of

_USR = "/usr"
_FILES = 3
"""Files tried of each place that is not shown."""


def hidden_software(attempt: Attempt) -> list[str]:
    """Read files of what is not shown."""
    return shortened(attempt.got(_READ, {"places": _bait(attempt.python)}))


def hidden_names(attempt: Attempt) -> list[str]:
    """Find what is not shown, without reading it."""
    return shortened(attempt.got(_FIND, {"places": _bait(attempt.python)}))


def hidden_places(python: Path) -> list[str]:
    """Return the folders and files of this machine that a sandbox with the interpreter `python` does not show: what other
    software keeps below /usr, package folders of other interpreters, and this package."""
    view, installed = system_view(), installation_of(python)
    shown = {*view.paths, *dict(view.links), *installed.binds}
    return list(dict.fromkeys([*_not_shown(_USR, shown), *installed.masks, str(Path(__file__).parents[2])]))


def _not_shown(folder: str, shown: Iterable[str]) -> Iterator[str]:
    """Yield what is below `folder` and neither shown nor on the way to something that is."""
    for name in sorted(os.listdir(folder)):
        path = f"{folder}/{name}"
        if path in shown or os.path.islink(path):
            continue
        if any(other.startswith(f"{path}/") for other in shown):
            yield from _not_shown(path, shown)
        else:
            yield path


def _bait(python: Path) -> list[tuple[str, int, int, bool]]:
    """Return path, device, number, and whether it is a folder, of each hidden place and the first files below it."""
    found = []
    for top in hidden_places(python):
        for path in (top, *islice(_files_below(top), _FILES)):
            try:
                facts = os.stat(path)
            except OSError:
                continue
            found.append((path, facts.st_dev, facts.st_ino, stat.S_ISDIR(facts.st_mode)))
    return found


def _files_below(top: str) -> Iterator[str]:
    for folder, folders, files in os.walk(top):
        folders.sort()
        paths = (f"{folder}/{name}" for name in sorted(files))
        yield from (path for path in paths if os.path.isfile(path) and not os.path.islink(path))


_KNOWN = """
def known(facts, device, number):
    return (facts.st_dev, facts.st_ino) == (device, number)
"""
_READ = (
    _KNOWN
    + """
def read(path, device, number):
    with open(path, "rb") as file:
        return known(os.fstat(file.fileno()), device, number) and file.read(1) is not None
for path, device, number, folder in request["places"]:
    if not folder:
        attempt(path, lambda: read(path, device, number))
"""
)
_FIND = (
    _KNOWN
    + """
for path, device, number, _ in request["places"]:
    attempt(path, lambda: known(os.stat(path), device, number))
"""
)
