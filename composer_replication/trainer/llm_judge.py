"""A teacher as the judge of the hint channel. Its answers are in the ledger, and are not paid for again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal, TypeAlias

from composer_replication.hints import Ask
from composer_replication.teachers import Ledger, Question, Teacher, TeacherAnswer, TeacherPool
from composer_replication.trainer.waiting import wait_for
from composer_replication.types import Message
from composer_replication.types.errors import BudgetExceededError

Answered: TypeAlias = Literal["answered", "failed", "over the cap"]


def ask_teacher(teacher: Teacher, ledger: Path, max_total_usd: float | None, counts: Counter[Answered] | None = None) -> Ask:
    """Return a function from a question to the teacher's answer; None when there is no answer, or no money left under the cap.

    It may be called where an event loop runs. Each call opens the ledger and closes it.

    Args:
        max_total_usd: cap on all that the ledger has paid or holds.
        counts: where it counts what came of its calls.

    Raises:
        TeacherError: calling it, when the endpoint cannot be reached or refuses.
    """

    told: Counter[Answered] = Counter() if counts is None else counts

    async def answer(text: str) -> TeacherAnswer:
        question = Question(question_id="judge", messages=[Message(role="user", content=text)])
        with Ledger(ledger) as kept:
            async with TeacherPool([teacher.as_judge()], ledger=kept, max_total_usd=max_total_usd) as pool:
                (found,) = await pool.ask([question])
                return found

    def ask(text: str) -> str | None:
        try:
            found = wait_for(answer(text))
        except BudgetExceededError:
            told["over the cap"] += 1
            return None
        told["answered" if found.error is None else "failed"] += 1
        return found.content if found.error is None else None

    return ask
