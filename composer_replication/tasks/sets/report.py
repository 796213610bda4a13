"""The outcome of each source of a set, and the tasks that the set leaves out. `SET/set.json` holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOutcome:
    """The build of one source."""

    source: str
    """As the list names it, without a password in an address."""
    folder: str
    """Its folder below the set's."""
    tasks: int = 0
    forgeable: int = 0
    candidates: int = 0
    reason: str = ""
    """Why it has no tasks; empty where it has some."""
    fix: str = ""
    """One sentence on how to change that."""
    seconds: float = 0.0
    """Wall-clock seconds of the call that built it."""
    cpu_s: float = 0.0
    """CPU-seconds of the build that ran last: of its process, of what that started, and of its sandboxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReport:
    """The result of building a set."""

    sources: tuple[SourceOutcome, ...]
    """In the order of the list."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By the path of a task below the set's folder: why runs do not take it."""

    @property
    def tasks(self) -> int:
        """Number of tasks that runs can take, forgeable ones included."""
        folders = {outcome.folder for outcome in self.sources}
        left = sum(path.partition("/")[0] in folders for path in self.left_out)
        return sum(outcome.tasks for outcome in self.sources) - left
