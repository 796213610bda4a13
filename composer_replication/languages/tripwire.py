"""The tripwire for languages that are read with tree-sitter: what a submission has and neither the gold code nor the rest of the
task needs.

It judges nothing: a forger needs none of it, and honest code may have any of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from pathlib import Path

from composer_replication.sandbox.grading.submission import is_editable
from composer_replication.types import TaskSpec

_TOO_LARGE, _LARGEST = "a file above 512 KB", 512 << 10
_TOO_SLOW, _ONE_S, _ALL_S = "a file that takes long to read", 5.0, 20.0
"""The host reads these files: one that is larger, or takes more CPU seconds, alone or with the others, is named, not read."""
_UNREAD = {_TOO_LARGE: "is too large to look at", _TOO_SLOW: "is too odd to look at"}


def telling(
    sources: Mapping[str, bytes], names_in: Callable[[str, bytes], Set[str]], is_read_within: Callable[[str, bytes, float], bool]
) -> set[str]:
    """Return the names in sources that are worth a look, and whether a file is too large or takes too long to read.

    Args:
        names_in: returns those of one file, given its path and content.
        is_read_within: returns whether a file can be parsed in so many CPU seconds.
    """
    found: set[str] = set()
    end = time.thread_time() + _ALL_S
    for path, source in sources.items():
        if len(source) > _LARGEST:
            found.add(_TOO_LARGE)
        elif not is_read_within(path, source, min(_ONE_S, end - time.thread_time())):
            found.add(_TOO_SLOW)
        else:
            found |= names_in(path, source)
    return found


def alarms_of(
    task: TaskSpec,
    pristine: Path,
    changes: Mapping[str, bytes | None],
    *,
    is_source: Callable[[str], bool],
    telling_in: Callable[[Mapping[str, bytes]], set[str]],
    kinds: Mapping[str, str],
) -> tuple[str, ...]:
    """Return one sentence for each kind of thing that a submission does and neither the gold code nor the task's code does.

    Args:
        kinds: what the code does that has a name, as the end of "the code ...".
    """
    changed = {path: content for path, content in changes.items() if content is not None and is_source(path)}
    profile = task.hidden.profile
    new = telling_in(changed) - set(profile.names if profile is not None else ())
    if new:
        files = (path for path in sorted(pristine.rglob("*")) if path.is_file() and not path.is_symlink())
        named = {path.relative_to(pristine).as_posix(): path for path in files}
        own = {name: path.read_bytes() for name, path in named.items() if is_source(name) and is_editable(task, name)}
        new -= telling_in(own)
    found: dict[str, list[str]] = {}
    for name in sorted(new):
        found.setdefault({**kinds, **_UNREAD}[name], []).append(name)
    return tuple(
        f"the code {kind} ({', '.join(names)}), which the rest of the task's code does not" for kind, names in found.items()
    )
