"""One exception tree for every error a user can see.

Every error carries what went wrong and, where there is one, the fix; the command line prints both without a traceback and
exits with the class's `exit_code`. Anything that is not a `ComposerError` is a bug and keeps its traceback.

    ComposerError                 1
    ├── ConfigError               2   a run file, an option or an argument is wrong
    │   ├── ArgumentError         2   an argument of a function or class is none it takes; a ValueError too
    │   └── MissingExtraError     2   an optional dependency is not installed
    ├── TaskError                 3   a task folder is missing, corrupted or cannot be built
    │   └── SourceError           3   the repository cannot be fetched, or its tests fail or hang
    ├── SandboxError              4   the sandbox could not be started or broke: never the agent's fault
    │   └── SandboxUnavailableError    4   no isolation of the kind asked for exists on this machine
    ├── ModelError                5   a model or tokenizer cannot be loaded or lacks something needed
    ├── TeacherError              6   a teacher endpoint failed
    │   └── BudgetExceededError   6   the spending cap would be crossed by the next call
    ├── CheckpointError           7   a checkpoint is corrupted or belongs to another run
    ├── StorageError              7   the run directory cannot be written (disk full, no permission)
    │   └── ObjectStoreError      7   an object store refuses, loses or damages what it is given, or does not answer
    ├── ChannelOffError           8   `strict=True` and a channel that was asked for has nothing to learn from
    ├── NothingLearntError        8   `strict = true` in a run file, and an arm learnt nothing, got worse or has an idle channel
    ├── TraceError                9   nothing at a path can be read as a trace
    ├── BackendError             11   a program that was asked to do the work (data-juicer, Ray) died or broke
    │   └── ReplicaError         11   replicas of a job failed, were cancelled or go on beyond the time given
    └── RoundError               12   an outer round cannot be completed: too few replicas, or its objects are damaged
        └── RoundExpiredError    12   the round's objects have been removed: this replica is too far behind
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

_NAMED = 5


def one_of(word: str, known: Iterable[str]) -> str:
    """Suggest a fix for an unknown name: the known ones most like `word`, or else the first few of them, and how many there
    are."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=_NAMED)
    left = len(names) - _NAMED
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"one of {', '.join(names[:_NAMED])}" + (f" and {left} more" if left > 0 else "")


class ComposerError(Exception):
    """Base of every error meant for the user: a sentence on what is wrong and one on how to fix it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return self.message if self.fix is None else f"{self.message}\n  fix: {self.fix}"


class ConfigError(ComposerError):
    """A run file, an option or an argument is wrong."""

    exit_code = 2


class ArgumentError(ConfigError, ValueError):
    """An argument of a function or class is none that it takes."""


class MissingExtraError(ConfigError, ImportError):
    """An optional dependency is not installed; `fix` names the extra. An `ImportError` too."""


class TaskError(ComposerError):
    """A task folder is missing, corrupted or cannot be built."""

    exit_code = 3


class SourceError(TaskError):
    """The repository cannot be fetched, or its own tests fail or hang before anything is deleted."""


class SandboxError(ComposerError):
    """The sandbox could not be started or broke. An infrastructure fault: never scored as the agent's failure."""

    exit_code = 4


class SandboxUnavailableError(SandboxError):
    """No isolation of the requested kind exists on this machine."""


class ModelError(ComposerError):
    """A model or tokenizer cannot be loaded or lacks something the rollout needs (a chat template, an EOS token)."""

    exit_code = 5


class TeacherError(ComposerError):
    """A teacher endpoint failed for a reason that retrying will not cure."""

    exit_code = 6


class BudgetExceededError(TeacherError):
    """The spending cap would be crossed by the next call; everything answered so far is in the ledger."""


class CheckpointError(ComposerError):
    """A checkpoint is corrupted or belongs to another run."""

    exit_code = 7


class StorageError(ComposerError):
    """The run directory cannot be written (disk full, no permission)."""

    exit_code = 7


class ObjectStoreError(StorageError):
    """An object store refuses, loses or damages what it is given, or does not answer; the message names the object."""


class ChannelOffError(ComposerError):
    """`strict=True` and a channel with a weight above zero has nothing to learn from in this batch."""

    exit_code = 8


class NothingLearntError(ComposerError):
    """`strict = true` in a run file, and an arm learnt nothing, got worse, or has a channel that never trained."""

    exit_code = 8


class TraceError(ComposerError):
    """Nothing at a path can be read as a trace of an agent."""

    exit_code = 9


class BackendError(ComposerError):
    """A program run in a separate process died or broke; its last output is in the message."""

    exit_code = 11


class ReplicaError(BackendError):
    """Replicas of a job failed, were cancelled, or go on beyond the time given.

    Args:
        failures: by rank, why each of them ended; empty where replicas only go on.
        results: by rank, what those returned that succeeded; None for the others.
    """

    def __init__(
        self,
        message: str,
        *,
        fix: str | None = None,
        failures: Mapping[int, str] | None = None,
        results: Sequence[Any] = (),
    ) -> None:
        super().__init__(message, fix=fix)
        self.failures = dict(failures or {})
        self.results = list(results)


class RoundError(ComposerError):
    """An outer round cannot be completed: too few replicas came in time, or an object that fixes its outcome is damaged."""

    exit_code = 12


class RoundExpiredError(RoundError):
    """The round's objects have been removed: this replica is too far behind and must load the newest state."""
