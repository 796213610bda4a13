"""Teachers' answers in a file, as `composer replay` writes them."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from composer_replication.config.lines import read_models
from composer_replication.teachers.pool import TeacherAnswer
from composer_replication.types.errors import ConfigError


def read_answers(path: Path | str) -> list[TeacherAnswer]:
    """Return the answers of an `answers.jsonl`, in its order.

    Raises:
        ConfigError: the file cannot be read or has no answers, a line is not an answer, or one teacher answers a state twice.
    """
    path = Path(path)
    answers: list[TeacherAnswer] = []
    first: dict[tuple[str, str], int] = {}
    for number, answer in read_models(path, TypeAdapter(TeacherAnswer)):
        key = (answer.question_id, answer.teacher)
        if key in first:
            raise ConfigError(
                f"{path}, line {number}: {answer.teacher!r} has answered {answer.question_id!r} already, in line {first[key]}",
                fix="remove one of the two lines: a teacher has one vote at a state",
            )
        first[key] = number
        answers.append(answer)
    if not answers:
        raise ConfigError(f"{path} has no answers", fix="name the answers.jsonl that `composer replay` wrote")
    return answers
