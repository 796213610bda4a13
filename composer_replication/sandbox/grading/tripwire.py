"""The tripwire: what a submission does that the gold code does not need, as a signal to a person. It judges nothing.

Two views of the work: the telling names in its text (`telling_names`), and the audit events that its code causes while the tests
run (`event_watch`). Neither sees all: `os._exit` and `frame.f_back` raise no event, and code in the same interpreter can silence
the hook. Honest work may need what the gold code does not. So an alarm changes no reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from composer_replication.sandbox.grading.events import EVENTS
from composer_replication.sandbox.grading.submission import is_editable
from composer_replication.sandbox.grading.telling_names import TOO_LARGE, UNREADABLE, kind_of, telling_names
from composer_replication.types import TaskSpec
from composer_replication.types.held_out_checks import GoldProfile

_BEYOND_GOLD = "which the gold code does not need"
_BEYOND_TREE = "which the rest of the task's code does not; what the gold code needs was not recorded"
_SHOWN = 6
"""Most names in one sentence."""


def alarms_of_files(paths: Sequence[str]) -> tuple[str, ...]:
    """Return an alarm for changed files that would decide what the tests mean."""
    return (f"the work changes files that decide what tests mean ({_listed(paths)}), which are not graded",) if paths else ()


def profile_of(sources: Iterable[bytes], events: Sequence[str]) -> GoldProfile:
    """Return what gold code needs: of the files that a solution changes, and the events of its graded run."""
    return GoldProfile(names=tuple(sorted(telling_names(sources))), events=tuple(sorted(events)))


def alarms_of(
    task: TaskSpec, pristine: Path, changes: Mapping[str, bytes | None], events: Iterable[str], *, runs: bool
) -> tuple[str, ...]:
    """Return what a submission does beyond the gold code, one sentence for each kind of thing.

    Without a profile of the gold code there are no events to compare with, and the names are those that the task's tree lacks.

    Args:
        pristine: the task's own tree.
        changes: the submission's files.
        events: kinds that its code caused in the tests.
        runs: a test passed, so that even a file that cannot be parsed here is code.
    """
    profile = task.hidden.profile
    known = profile or GoldProfile()
    new = telling_names(_python(changes)) - set(known.names)
    if not runs:
        new -= {UNREADABLE}
    if new:  # the whole tree is read for the few submissions that leave a question
        new -= telling_names(_sources(task, pristine))
    noted = [] if profile is None else [event for event in events if event not in known.events]
    return tuple(_sentences(new, noted, _BEYOND_TREE if profile is None else _BEYOND_GOLD))


def _python(changes: Mapping[str, bytes | None]) -> list[bytes]:
    return [content for path, content in changes.items() if content is not None and path.endswith(".py")]


def _sources(task: TaskSpec, pristine: Path) -> Iterable[bytes]:
    """Yield the Python files of the task's tree that a submission may change: tests import what only tests need."""
    for path in sorted(pristine.rglob("*.py")):
        if path.is_file() and not path.is_symlink() and is_editable(task, path.relative_to(pristine).as_posix()):
            yield path.read_bytes()


def _sentences(names: Iterable[str], events: Iterable[str], beyond: str) -> list[str]:
    found: dict[str, dict[str, None]] = {}
    for name in sorted(names):
        kind = {UNREADABLE: "is not Python that can be parsed here", TOO_LARGE: "is too large to look at"}.get(name)
        found.setdefault(kind or kind_of(name) or "", {})[name] = None
    for event in events:
        kind = next(kind for start, kind in EVENTS if event.startswith(start))
        found.setdefault(kind, {})[event] = None
    return [f"the code {kind} ({_listed(list(details))}), {beyond}" for kind, details in found.items()]


def _listed(details: Sequence[str]) -> str:
    more = len(details) - _SHOWN
    return ", ".join(details[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
