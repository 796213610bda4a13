"""A teacher as the judge of two actions that no other method could distinguish or equate.

It is asked twice, once in each order, and believed only when it says the same both times: a model's preference for what stands
first is not a verdict (https://arxiv.org/abs/2305.17926).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from composer_replication.actions.agreement import ActionComparison, SameAction
from composer_replication.actions.calls import parse_action
from composer_replication.teachers.ledger import Ledger
from composer_replication.teachers.pool import TeacherPool
from composer_replication.teachers.teacher import Question, Teacher

JUDGE_CONFIDENCE = 0.8
"""Confidence of a verdict that a judge gives in both orders: the weight of a pair that rests on it, times its share of the
votes."""

_INSTRUCTION = (
    "You compare two actions of a coding agent, both meant for the same moment. Answer yes if they are interchangeable: in every "
    "state of the files they have the same effect and show the agent the same information. Answer no if they are not. Answer "
    "with one word, yes or no."
)


async def judge_pairs(
    pairs: Iterable[tuple[str, str]], judge: Teacher, *, ledger: Ledger, max_total_usd: float | None
) -> dict[tuple[str, str], ActionComparison]:
    """Return the judge's verdict on each pair of actions, under the pair as it is given and under its reverse.

    The ledger keeps the answers by the actions with sorted arguments, so no pair is paid for twice, in whichever order it comes.

    Raises:
        ConfigError, TeacherError, BudgetExceededError, StorageError: see `TeacherPool`.
    """
    wanted = list(dict.fromkeys(pairs))
    questions = [_question(f"{i}{order}", *_in_order(pair, order)) for i, pair in enumerate(wanted) for order in "ab"]
    if not questions:
        return {}
    async with TeacherPool([judge.as_judge()], ledger=ledger, max_total_usd=max_total_usd) as pool:
        said = {a.question_id: a.content if a.error is None else "" for a in await pool.ask(questions)}
    verdicts: dict[tuple[str, str], ActionComparison] = {}
    for i, (one, other) in enumerate(wanted):
        verdict = _verdict(_yes(said[f"{i}a"]), _yes(said[f"{i}b"]))
        verdicts[one, other] = verdicts[other, one] = verdict
    return verdicts


def _in_order(pair: tuple[str, str], order: str) -> tuple[str, str]:
    one, other = sorted(map(_plain, pair))
    return (one, other) if order == "a" else (other, one)


def _plain(action: str) -> str:
    content, calls = parse_action(action)
    lines = [f"{call.name} {json.dumps(dict(call.arguments), sort_keys=True, ensure_ascii=False)}" for call in calls]
    return "\n".join(lines) or content.strip()


def _question(name: str, one: str, other: str) -> Question:
    text = f"First action:\n{one}\n\nSecond action:\n{other}\n\nAre they interchangeable?"
    return Question(question_id=name, messages=[{"role": "system", "content": _INSTRUCTION}, {"role": "user", "content": text}])


def _yes(answer: str) -> bool | None:
    word = answer.strip().strip(".!*\"'").casefold()
    return {"yes": True, "no": False}.get(word)


def _verdict(first: bool | None, second: bool | None) -> ActionComparison:
    if first is None or second is None:
        return ActionComparison(SameAction.UNDECIDED, "judge", "the judge answers neither yes nor no")
    if first is not second:
        return ActionComparison(SameAction.UNDECIDED, "judge", "the judge answers otherwise when the order is reversed")
    return ActionComparison(
        SameAction.SAME if first else SameAction.DIFF, "judge", "the judge says so in both orders", JUDGE_CONFIDENCE
    )
