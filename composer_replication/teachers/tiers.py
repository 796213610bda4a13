"""The cheap teacher first, the expensive ones where it does not settle the matter, and both audited; one ledger, one cap."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from composer_replication.teachers.audit import Audit, Missed
from composer_replication.teachers.call import Failure
from composer_replication.teachers.gate import Decision, Gate
from composer_replication.teachers.ledger import Ledger
from composer_replication.teachers.pool import BUDGET, OnAnswer, TeacherAnswer, TeacherPool
from composer_replication.teachers.tariff import ReplayStep, Tariff, window_tariff
from composer_replication.teachers.teacher import Question, Teacher
from composer_replication.types.errors import BudgetExceededError, ConfigError

OnTier: TypeAlias = Callable[[Sequence[Teacher], int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredAnswers:
    """Answers and decisions of a gated replay."""

    answers: tuple[TeacherAnswer, ...]
    """Answers question by question, the cheap teacher's first; none from teachers that were not asked."""
    first: tuple[Decision, ...]
    """One for every question: whether the cheap teacher was asked."""
    second: tuple[Decision, ...]
    """One for every question: whether the others were asked."""
    audit: Audit

    def missed(self, valuable: Collection[str], *, confidence: float = 0.95) -> Missed:
        """Return how many valuable states were left out; see `Audit.missed`. `valuable` are ids of states that gave a pair."""
        silent = {a.question_id for a in self.answers if a.error is not None}
        return self.audit.missed(valuable, unanswered=silent, confidence=confidence)


def cheapest(teachers: Sequence[Teacher]) -> Teacher:
    """Return the teacher whose answers cost least, reading 10 tokens for each that is written.

    Raises:
        ConfigError: fewer than two teachers, or a price is unknown.
    """
    if len(teachers) < 2:
        raise ConfigError("a replay in tiers needs a cheap teacher and another", fix="name at least two teachers")
    return min(teachers, key=lambda teacher: (tariff := Tariff.of(teacher)).fresh * 10 + tariff.answer)


async def ask_in_tiers(
    questions: Sequence[Question],
    steps: Sequence[ReplayStep],
    *,
    cheap: Teacher,
    dear: Sequence[Teacher],
    gate: Gate,
    agrees: Callable[[TeacherAnswer], bool],
    ledger: Ledger,
    max_total_usd: float | None,
    on_answer: OnAnswer | None = None,
    on_tier: OnTier | None = None,
    reach: int | None = None,
) -> TieredAnswers:
    """Ask the teachers that the gate selects.

    The tiers run one after the other. What was answered before, in this run or an earlier one, comes from the ledger, and the
    audit's draws are the same again: a killed run that is repeated asks nothing twice.

    Args:
        steps: one for every question, in the same order.
        agrees: whether an answer of the cheap teacher's is certainly the student's own action. A call that brought no answer
            is not a disagreement: the others are not asked for it, and the same replay asks the cheap teacher again. They are
            asked where the endpoint refused the question itself.
        max_total_usd: cap on everything the ledger has paid, both tiers together; what does not fit is answered with `BUDGET`.
        on_answer: see `TeacherPool.ask`.
        on_tier: called before each tier with its teachers and the number of questions they will get.
        reach: of the endpoints' prompt caches (`Tariff.reach`).

    Raises:
        ConfigError: teachers that cannot be asked (see `TeacherPool`), or there is none beside the cheap one.
        TeacherError: no teacher of a tier answered; BudgetExceededError when the cap left nothing for the first.
    """
    if not dear:
        raise ConfigError("a replay in tiers needs a cheap teacher and another", fix="name at least two teachers")
    if cheap in dear:
        raise ConfigError(f"teacher {cheap.name!r} stands in both tiers", fix="leave the cheap teacher out of the others")
    async with TeacherPool([cheap, *dear], ledger=ledger, max_total_usd=max_total_usd) as pool:
        first = gate.first(steps, window_tariff([cheap], reach))
        chosen = _chosen(questions, first)
        if on_tier is not None:
            on_tier([cheap], len(chosen))
        answered = await pool.ask(chosen, teachers=[cheap.name], on_answer=on_answer)
        failed = {a.question_id for a in answered if a.error is not None and a.failure is not Failure.REFUSED}
        agreeing = {a.question_id for a in answered if a.error is None and agrees(a)}
        second = gate.second(steps, first, agreeing | failed, window_tariff(dear, reach))
        chosen = _chosen(questions, second)
        if on_tier is not None:
            on_tier(dear, len(chosen))
        try:
            answered += await pool.ask(chosen, teachers=[t.name for t in dear], on_answer=on_answer)
        except BudgetExceededError:
            answered += [_unpaid(q, t) for q in chosen for t in dear]
    place = {q.question_id: i for i, q in enumerate(questions)}
    return TieredAnswers(
        answers=tuple(sorted(answered, key=lambda a: place[a.question_id])),
        first=tuple(first),
        second=tuple(second),
        audit=gate.audited([d for d in second if d.state_id not in failed]),  # nothing was decided about those
    )


def _chosen(questions: Sequence[Question], decisions: Sequence[Decision]) -> list[Question]:
    return [q for q, d in zip(questions, decisions, strict=True) if d.reasons]


def _unpaid(question: Question, teacher: Teacher) -> TeacherAnswer:
    return TeacherAnswer(
        question_id=question.question_id,
        teacher=teacher.name,
        family=teacher.vote_family,
        error=BUDGET,
        failure=Failure.BUDGET,
    )
