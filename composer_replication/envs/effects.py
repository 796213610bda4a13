"""Equality of actions by their effects: each is carried out in a fork of the environment where the student stood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.actions.agreement import ActionComparison, SameAction
from composer_replication.actions.agreement.edits import same_text
from composer_replication.actions.calls import Call
from composer_replication.envs.coding import CodingEnv
from composer_replication.envs.workspace import Workspace
from composer_replication.types import ToolCall

_BROKE_OFF = frozenset({"timeout", "out_of_memory"})


class WorkspaceFiles(Mapping[str, str | None]):
    """All text files of a workspace, read when first needed."""

    def __init__(self, workspace: Callable[[], Workspace]) -> None:
        self._workspace = workspace

    def __getitem__(self, path: str) -> str | None:
        text = self._workspace().read(path)
        if text is None:
            raise KeyError(path)
        return text

    def __iter__(self) -> Iterator[str]:
        return iter(self._workspace().files())

    def __len__(self) -> int:
        return len(self._workspace().files())


@dataclass(frozen=True, slots=True)
class _Effect:
    env: CodingEnv
    endings: tuple[tuple[str, Any], ...]
    """Status and exit status of each call."""

    @property
    def broke_off(self) -> bool:
        return any(status in _BROKE_OFF for status, _ in self.endings)


def same_state(env: CodingEnv, one: Sequence[Call], other: Sequence[Call]) -> ActionComparison:
    """Compare the files that two actions leave behind and how their calls end; then, where the files differ, the tests.

    Only for actions that change files. Commands are run twice: of one that leaves something else behind the second time, such as
    a time of day, nothing can be said. Files are compared as `agreement.edits.same_text` does; folders that tools litter do not
    count.

    Raises:
        SandboxError: the sandbox broke, so there is no verdict.
    """
    runs = [[_carried_out(env, calls) for _ in range(2 if any(c.name == "bash" for c in calls) else 1)] for calls in (one, other)]
    left, right = runs[0][0], runs[1][0]
    if left.broke_off or right.broke_off or left.env.done or right.env.done:
        return _undecided("one of them does not come to an end, or ends the work")
    if any(run.env.workspace.changes != first.env.workspace.changes for first, *again in runs for run in again):
        return _undecided("one of them does something else every time")
    if all(run.env.workspace.changes == env.workspace.changes for run in (left, right)):
        return _undecided("neither changes a file")
    if _same_files(left.env.workspace, right.env.workspace):
        same = left.endings[-1] == right.endings[-1]
        return (
            ActionComparison(SameAction.SAME, "state", "the same files afterwards")
            if same
            else _undecided("they end differently")
        )
    tests = [_tests(run.env) for run in (left, right)]
    if None in tests or tests[0] == tests[1]:
        return _undecided("the files differ afterwards, and no test tells which is right")
    return ActionComparison(SameAction.DIFF, "state", "other tests pass afterwards")


def _undecided(why: str) -> ActionComparison:
    return ActionComparison(SameAction.UNDECIDED, "state", why)


def _carried_out(env: CodingEnv, calls: Sequence[Call]) -> _Effect:
    fork = env.fork()
    endings = []
    for number, call in enumerate(calls):
        if fork.done:
            break
        result = fork.step(ToolCall(call_id=f"c{number}", name=call.name, arguments=call.arguments))
        endings.append((result.status, result.details.get("returncode", 0)))
    return _Effect(fork, tuple(endings))


def _same_files(one: Workspace, other: Workspace) -> bool:
    paths = one.changes.keys() | other.changes.keys()
    return all(
        (path in one.changes and path in other.changes and one.changes[path] == other.changes[path])
        or (one.read(path) is not None and same_text(path, one.read(path), other.read(path)))
        for path in paths
    )


def _tests(env: CodingEnv) -> tuple[frozenset[str], frozenset[str]] | None:
    """Return the ids that failed and that passed; None when the run did not finish."""
    result = env.step(ToolCall(call_id="t", name="run_tests", arguments={}))
    if not result.carried_out:
        return None
    return frozenset(result.details["failed"]), frozenset(result.details["passed"])
