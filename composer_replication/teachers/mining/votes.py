"""A teacher's answer as a vote: only an action that can be carried out has one."""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.actions.agreement import Vote
from composer_replication.actions.agreement.validity import problem_of
from composer_replication.actions.calls import Call, canonical_action, render_action
from composer_replication.teachers.pool import BUDGET, TeacherAnswer
from composer_replication.types import ToolSchema


def cast_vote(answer: TeacherAnswer, tools: Sequence[ToolSchema] = ()) -> Vote | str:
    """Return the answer's vote, or the reason why it has none.

    Args:
        tools: schemas the calls are checked against; with none, every well-formed call is valid.
    """
    if answer.error is not None:
        return "over budget" if answer.error == BUDGET else "no answer"
    if answer.finish_reason in ("length", "content_filter"):
        return "cut off"
    calls: list[Call] = []
    for call in answer.tool_calls:
        problem = "malformed call" if call.error is not None else problem_of(Call(call.name, call.arguments), tools)
        if problem:
            return problem
        calls.append(Call(call.name, call.arguments))
    if not canonical_action(answer.content, calls):
        return "empty answer"
    action = render_action(answer.content, calls)
    return Vote(teacher=answer.teacher, family=answer.family or answer.teacher, action=action)
