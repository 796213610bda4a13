"""The policy that knows the answer, and the one that gives none: each task's two proofs that it is sound."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from composer_replication.envs.workspace import Workspace
from composer_replication.sandbox import Limits, Sandbox
from composer_replication.sandbox.grading.grade import grade
from composer_replication.tasks.proofs.task_copies import shown_tasks
from composer_replication.tasks.store import Task
from composer_replication.types import Message, Unscored
from composer_replication.types.errors import SandboxError, TaskError

_MOST_CONTEXT = 12
_log = logging.getLogger(__name__)


def prove_solution(task: Task, *, sandbox: Sandbox, python: Path, limits: Limits | None = None) -> None:
    """Grade a task's own solution. With the wrong interpreter every reward would be 0, and nothing would say why.

    Raises:
        TaskError: it does not score 1; names the task, the interpreter and the first reason.
        SandboxError: the sandbox broke.
    """
    report = grade(task.spec, task.repo, task.gold_files(), sandbox=sandbox, python=python, limits=limits)
    if isinstance(report.reward, Unscored):
        raise SandboxError(f"no test could be run: {report.reward.reason}", fix="`composer grade` on any tree shows more")
    if report.reward != 1.0:
        raise TaskError(
            f"the solution of {task.spec.task_id} does not pass its tests with {python}: {'; '.join(report.reasons[:1])}",
            fix="name the interpreter the task was built with (--python, or tasks.python in a run file), or allow more memory",
        )


def sound_tasks(
    tasks: Sequence[Task],
    pythons: Mapping[str, Path],
    *,
    sandbox: Sandbox,
    limits: Callable[[Task], Limits] | None = None,
) -> list[Task]:
    """Return the tasks whose rewards mean something on this machine: they are intact and have an interpreter, no sandbox with it
    shows the code that they delete, and it solves the first possible task of their folder with that task's own solution.

    The others are left out, each reason in a warning.

    Args:
        pythons: as `tasks.interpreters.interpreters_of` returns them.
        limits: of a task's tests; those that it names itself where this is None.

    Raises:
        TaskError: there are tasks, and none of them is left.
        SandboxError: the sandbox broke, or a search in it did not get to its end.
    """
    refused: dict[str, TaskError] = {}
    placed: list[Task] = []
    for task in (task for task in tasks if task.spec.task_id in pythons):
        try:
            task.check()
            task.language.check_programs(task.spec.hidden.programs)
            placed.append(task)
        except TaskError as error:
            refused[task.spec.task_id] = error
    for python in sorted({pythons[task.spec.task_id] for task in placed}):
        mine = [task for task in placed if pythons[task.spec.task_id] == python]
        try:
            refused |= shown_tasks(mine, sandbox, python)
        except TaskError as error:  # it does not run
            refused |= dict.fromkeys((task.spec.task_id for task in mine), error)
    of_folder: dict[tuple[Path, Path], list[Task]] = {}
    for task in placed:
        if task.spec.task_id not in refused:
            of_folder.setdefault((task.root.parent, pythons[task.spec.task_id]), []).append(task)

    def prove(found: tuple[tuple[Path, Path], list[Task]]) -> dict[str, TaskError]:
        (_, python), mine = found
        for task in [task for task in mine if not task.spec.impossible][:1]:
            try:
                prove_solution(task, sandbox=sandbox, python=python, limits=None if limits is None else limits(task))
            except TaskError as error:
                return dict.fromkeys((task.spec.task_id for task in mine), error)
        return {}

    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="prove") as threads:
        for errors in threads.map(prove, of_folder.items()):
            refused |= errors
    kept = [task for task in placed if task.spec.task_id not in refused]
    if tasks and not kept:
        raise next(iter(refused.values()))
    for reason in dict.fromkeys(refused.values()):
        count = list(refused.values()).count(reason)
        _log.warning("left out: %d %s: %s; %s", count, "task" if count == 1 else "tasks", reason.message, reason.fix)
    return kept


def noop_script() -> list[Message]:
    """Submit at once."""
    return [call_turn("submit")]


def oracle_script(task: Task) -> list[Message]:
    """Restore the gold code with the agent's own tools, one call a turn, then submit.

    Each changed region is an `edit_file` with as little context as makes it unique; a file where that is not possible is
    written whole. Raises TaskError for gold code that is not UTF-8.
    """
    workspace = Workspace(task.repo)
    script: list[Message] = []
    for path, content in sorted(task.gold_files().items()):
        try:
            gold = content.decode()
        except UnicodeDecodeError as error:
            raise TaskError(f"the gold file {path} of {task.spec.task_id} is not UTF-8", fix="build the task again") from error
        text = workspace.read(path)
        edits = None if text is None else _edits(text, gold)
        if edits is None:
            script.append(call_turn("write_file", path=path, content=gold))
        else:
            script += [call_turn("edit_file", path=path, old=old, new=new) for old, new in edits]
    return [*script, *noop_script()]


def _edits(text: str, gold: str) -> list[tuple[str, str]] | None:
    """Return replacements that turn `text` into `gold` in order, each `old` unique when it is applied; None when there are
    none."""
    before, after = text.splitlines(keepends=True), gold.splitlines(keepends=True)
    edits = []
    for old_at, old_end, new_at, new_end in _changed_regions(before, after):
        edit = _unique_edit(text, before, after, (old_at, old_end, new_at, new_end))
        if edit is None:
            return None
        edits.append(edit)
        text = text.replace(*edit)
    return edits if text == gold else None


def _changed_regions(before: list[str], after: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """Yield regions that differ, last first, so that an edit moves none of those still to come."""
    opcodes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    yield from ((i1, i2, j1, j2) for tag, i1, i2, j1, j2 in reversed(opcodes) if tag != "equal")


def _unique_edit(text: str, before: list[str], after: list[str], region: tuple[int, int, int, int]) -> tuple[str, str] | None:
    """Return the region with the fewest equal lines around it that make it unique in `text`."""
    old_at, old_end, new_at, new_end = region
    for above, below in sorted(
        ((a, b) for a in range(_MOST_CONTEXT) for b in range(_MOST_CONTEXT)), key=lambda c: (sum(c), c[1])
    ):
        start, end = old_at - above, old_end + below
        if start < 0 or end > len(before) or before[old_end:end] != after[new_end : new_end + below]:
            continue
        if before[start:old_at] != after[max(0, new_at - above) : new_at]:
            continue
        old = "".join(before[start:end])
        if old and text.count(old) == 1:
            return old, "".join(after[new_at - above : new_end + below])
    return None


def call_turn(name: str, **arguments: Any) -> Message:
    """Make an assistant turn that is one tool call."""
    function = {"name": name, "arguments": arguments}
    return Message(role="assistant", content="", tool_calls=[{"id": "call", "type": "function", "function": function}])
