"""Another instruction for a task that is built: all three styles follow from what its folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from composer_replication.tasks.describe import describe
from composer_replication.tasks.feature import Feature
from composer_replication.tasks.store import Task
from composer_replication.types import InstructionStyle
from composer_replication.types.errors import TaskError


def feature_of(task: Task) -> Feature | None:
    """Return the facts about the deleted functions recorded when the task was built; None when its functions cannot be named."""
    sources = task.gold_files()
    known = {
        function.key: function
        for path, source in sources.items()
        for function in task.language.find_functions(path, source, True)[0]
    }
    functions = [known.get(f"{d.path}::{d.qualname}") for d in task.spec.deleted]
    found = [function for function in functions if function is not None]
    if not found or len(found) < len(functions):
        return None
    return Feature(
        functions=found,
        sources=sources,
        fail_to_pass=task.spec.fail_to_pass,
        docs=task.docs(),
        removed=task.language.removes(str(task.provenance.get("mode", "stub"))),
        language=task.language,
    )


def worded(tasks: Sequence[Task], style: InstructionStyle | None) -> list[Task]:
    """Return the tasks with the instruction that a build with `style` gives them, in memory only; None leaves them unchanged.

    Raises:
        TaskError: the functions of one cannot be named, as in a commit's task and in the reversion of a SWE-bench row.
    """
    if style is None:
        return list(tasks)
    found: list[Task] = []
    for task in tasks:
        feature = feature_of(task)
        if feature is None:
            raise TaskError(
                f"task {task.spec.task_id} has one instruction only: its functions are not named",
                fix="leave the instruction as it was built, or leave the task out",
            )
        found.append(replace(task, spec=replace(task.spec, instruction=describe(feature, style))))
    return found
