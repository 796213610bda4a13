"""Instructions in a model's words: outside models write them from what the project itself says, and never give the code away.

A writer is shown what a `full` instruction holds (signatures, docstrings, names of tests, pages of documentation) and not the
deleted code. It may remember the code all the same, so a text with a run of six of a body's tokens that the writer was not shown
is not used.
"""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.languages.functions import Skipped
from composer_replication.tasks.describe import describe
from composer_replication.tasks.proofs.leak import gives_away
from composer_replication.tasks.store import Task, reworded
from composer_replication.tasks.wording import feature_of
from composer_replication.teachers import Question, TeacherPool

_ORDER = (
    "Write the issue that asks a developer to implement what is described below in a repository that lacks it. Say what has to "
    "work and how it behaves at the edges, in at most 200 words. Keep every path and every name of a function as it is. Write no "
    "code and no steps. Answer with the text of the issue only."
)
_SEED_PROBLEM = "its functions are not found in the gold code"


def facts_of(task: Task) -> str | None:
    """Return the `full` instruction of a task, from its own folder; None for one whose deleted functions cannot be named."""
    feature = feature_of(task)
    return None if feature is None else describe(feature, "full")


async def rewrite_instructions(tasks: Sequence[Task], pool: TeacherPool) -> tuple[list[Task], list[Skipped]]:
    """Replace the instructions of `tasks` by what the first teacher of the pool that answers writes; the others, and why not.

    The ledger of the pool makes an interrupted call free to repeat.

    Raises:
        TeacherError: no call brought an answer.
        StorageError: a task folder cannot be written.
    """
    facts = {task.spec.task_id: facts_of(task) for task in tasks}
    skipped = [Skipped(name, _SEED_PROBLEM) for name, text in facts.items() if text is None]
    asked = {name: text for name, text in facts.items() if text is not None}
    questions = [
        Question(question_id=name, messages=[{"role": "system", "content": _ORDER}, {"role": "user", "content": text}])
        for name, text in asked.items()
    ]
    answers = await pool.ask(questions) if questions else []
    done: list[Task] = []
    for task in tasks:
        name = task.spec.task_id
        usable = [a for a in answers if a.question_id == name and a.error is None and a.content.strip()]
        if name not in asked:
            continue
        if not usable:
            skipped.append(Skipped(name, "no teacher answered"))
        elif gives_away(usable[0].content, task.deleted_code(), shown=asked[name]):
            skipped.append(Skipped(name, "the text gave the deleted code away"))
        else:
            done.append(reworded(task, usable[0].content.strip(), by=usable[0].teacher))
    return done, skipped
