"""Where teachers agree: canonical actions are counted, one vote per model family, and only valid actions vote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jsonschema import Draft202012Validator

from composer_replication.actions import Call, canonical_action, render_action
from composer_replication.teachers.pool import BUDGET, TeacherAnswer
from composer_replication.types import ToolSchema

__all__ = ["Consensus", "Vote", "cast_vote", "consensus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One teacher's valid action."""

    teacher: str
    family: str
    action: str
    """As text (`composer_replication.actions.render_action`)."""
    canonical: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Consensus:
    """The action most families agree on."""

    action: str
    """The shortest of the agreeing teachers' texts."""
    canonical: str
    teachers: tuple[str, ...]
    """All teachers who agree, of one family or several."""
    families: int


def cast_vote(answer: TeacherAnswer, tools: Sequence[ToolSchema] = ()) -> Vote | str:
    """The answer's vote, or the reason why it has none.

    Args:
        tools: schemas the calls are checked against; with none, every well-formed call is valid.
    """
    if answer.error is not None:
        return "over budget" if answer.error == BUDGET else "no answer"
    if answer.finish_reason == "length":
        return "cut off"
    calls: list[Call] = []
    for call in answer.tool_calls:
        problem = "malformed call" if call.error is not None else _problem(Call(call.name, call.arguments), tools)
        if problem:
            return problem
        calls.append(Call(call.name, call.arguments))
    action = render_action(answer.content, calls)
    canonical = canonical_action(answer.content, calls)
    if not canonical:
        return "empty answer"
    return Vote(teacher=answer.teacher, family=answer.family or answer.teacher, action=action, canonical=canonical)


def _problem(call: Call, tools: Sequence[ToolSchema]) -> str:
    if not tools:
        return ""
    schemas = {t["function"]["name"]: t["function"].get("parameters", {}) for t in tools}
    if call.name not in schemas:
        return "unknown tool"
    valid = Draft202012Validator(schemas[call.name]).is_valid(dict(call.arguments))
    return "" if valid else "invalid arguments"


def consensus(votes: Sequence[Vote], *, threshold: int) -> Consensus | str:
    """The action that at least `threshold` families chose and more than chose any other, or the reason why there is none.

    Families, not teachers, are counted: models of one family make correlated errors, and a majority of them is no evidence.
    """
    supporters: dict[str, list[Vote]] = defaultdict(list)
    for vote in votes:
        supporters[vote.canonical].append(vote)
    sizes = {canonical: len({v.family for v in group}) for canonical, group in supporters.items()}
    most = max(sizes.values(), default=0)
    if most < threshold:
        return "too few teachers agree"
    leaders = [canonical for canonical, size in sizes.items() if size == most]
    if len(leaders) > 1:
        return "tie"
    group = supporters[leaders[0]]
    shortest = min(group, key=lambda v: (len(v.action), v.action))
    return Consensus(
        action=shortest.action, canonical=leaders[0], teachers=tuple(sorted(v.teacher for v in group)), families=most
    )
