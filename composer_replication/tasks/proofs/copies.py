"""Copies of the deleted code outside of the tree: in whatever else a sandbox can read.

The search runs in a sandbox (`copies_driver.py`). What it has read of each file is kept in the user's cache folder, so a search
reads new and changed files only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.sandbox.backends.system import system_view
from composer_replication.sandbox.protocol import Command, Ending, Limits, Sandbox, Tree
from composer_replication.sandbox.request import WARM_FLAGS
from composer_replication.sandbox.scratch import scratch_folder
from composer_replication.types.errors import SandboxError

_LIMITS = Limits(wall_s=1200, cpu_s=1200, output_bytes=512 << 20)
_FORMAT = 1


def find_copies(sandbox: Sandbox, python: Path, sources: Mapping[str, bytes], keys: Sequence[str]) -> dict[str, str]:
    """Return where a sandbox with the interpreter `python` can read functions of `sources`, by their keys (`Function.key`).

    Empty where sandboxes do not isolate: those are for code that one trusts.

    Raises:
        SandboxError: the sandbox broke, or the search did not get to its end.
    """
    if sandbox.isolation.name == "unsafe-subprocess":
        return {}
    cache = _cache_file(sandbox.isolation.name, python)
    known = _read_cache(cache)
    request = {
        "roots": ["/", *system_view().paths, *sandbox.installation(python).binds],
        "sources": {path: source.decode(errors="replace") for path, source in sources.items()},
        "keys": keys,
        "known": known,
    }
    answer = _run(sandbox, python, json.dumps(request).encode())
    gone = set(answer["gone"])
    kept = {path: entry for path, entry in known.items() if path not in gone} | answer["changed"]
    if kept != known:
        _write_cache(cache, kept)
    return _places(answer["hits"], answer["sizes"], keys)


def _places(hits: Mapping[str, Any], sizes: Mapping[str, int], keys: Iterable[str]) -> dict[str, str]:
    """Choose the places that count, for each function the first.

    A file that holds two functions of a module, and at least half of what both define, is a copy of it, perhaps of another
    version, and counts for every function that both define.
    """
    places: dict[str, str] = {}
    for place, (found, defined) in sorted(hits.items()):
        names = set(defined)
        for module in {key.partition("::")[0] for key in found}:
            here = [key for key in found if key.startswith(f"{module}::")]
            both = [key for key in keys if key.startswith(f"{module}::") and key in sizes and _name(key) in names]
            whole = len({_name(key) for key in here}) > 1 and 2 * len(here) >= len(both)
            for key in (*here, *both) if whole else here:
                places.setdefault(key, place)
    return places


def _name(key: str) -> str:
    return key.rpartition("::")[2].rpartition(".")[2]


def _run(sandbox: Sandbox, python: Path, request: bytes) -> dict[str, Any]:
    program = Path(__file__).with_name("copies_driver.py").read_text(encoding="utf-8")
    command = Command(argv=(str(python), *WARM_FLAGS, program), python=python, stdin=request, limits=_LIMITS)
    with scratch_folder() as folder:
        result = sandbox.run(Tree(base=folder), command)
    said = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    if result.ending is not Ending.EXITED or result.returncode != 0:
        raise SandboxError(f"the search for copies of the code ended early ({result.ending}: {said})", fix="try --python")
    answer: dict[str, Any] = json.loads(result.channel)
    return answer


def cache_folder() -> Path:
    """Return the folder of the indexes of files; deleting it only costs time."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "composer-replication" / "copies"


def _cache_file(kind: str, python: Path) -> Path:
    name = hashlib.sha256(f"{_FORMAT}\n{kind}\n{python}".encode()).hexdigest()[:20]
    return cache_folder() / f"{name}.json"


def _read_cache(file: Path) -> dict[str, list[Any]]:
    """Return what an earlier search wrote; nothing where it is damaged."""
    try:
        found = json.loads(file.read_bytes())
        if all(isinstance(name, str) and isinstance(size, int) and isinstance(at, int) for size, at, name in found.values()):
            return dict(found)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        pass
    return {}


def _write_cache(file: Path, index: Mapping[str, Any]) -> None:
    """Write the cache whole, under a name of its own first, as several builds may do so at once. Where there is no room for it,
    there is none."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with open(fd, "wb") as out:
                out.write(json.dumps(index).encode())
            os.replace(temporary, file)
        except OSError:
            os.unlink(temporary)
            raise
